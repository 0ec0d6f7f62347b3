"""The `bastion` command line."""
