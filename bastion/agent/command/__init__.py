"""One try of the user's command, and its processes."""
