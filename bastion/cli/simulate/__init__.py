"""Commands that run the scheduler on made-up or recorded jobs."""
