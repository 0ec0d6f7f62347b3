"""Fakes that power tests, local mode and the simulator; shipped for users of the API, too."""
