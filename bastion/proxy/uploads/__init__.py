"""Uploads: from a client's plaintext to a sealed object."""
