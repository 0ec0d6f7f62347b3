"""The storage service: where it is asked, and over which connections."""
