"""Commands that run the scheduler on synthetic or recorded jobs."""
