"""From a client's plaintext to a sealed object: uploads of every kind."""
