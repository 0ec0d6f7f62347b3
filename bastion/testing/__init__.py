"""Fakes for tests, local mode and the simulator; shipped for users of the API."""
