"""Values: jobs, attempts, gangs, places, settings."""
