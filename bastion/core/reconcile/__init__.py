"""The action to take on each job, from what was observed and decided. Pure."""
