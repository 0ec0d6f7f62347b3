"""Serving clients: the address, its processes, and the certificates."""
