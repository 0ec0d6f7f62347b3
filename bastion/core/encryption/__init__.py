"""What the encrypting proxy, its clients and the agent agree on."""
