"""Reads: from a sealed object to a client's plaintext."""
