"""The user's code on a host: fetched, unpacked, set up."""
