"""Serving clients: the address, the processes behind it, and the certificates."""
