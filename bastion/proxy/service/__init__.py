"""The storage service: requests to it and their connections."""
