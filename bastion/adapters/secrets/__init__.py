"""Sources of secrets on a host."""
