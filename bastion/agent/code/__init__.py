"""The user's code on a host: download, unpack, set up."""
