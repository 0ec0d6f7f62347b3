"""Output for people: the status, waiting times, the daemon's log."""
