"""What to do about each job, given what was seen and what was decided. Pure."""
