"""Contracts between the encrypting proxy, its clients and the agent."""
