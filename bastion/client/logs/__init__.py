"""Reading jobs' output from the bucket."""
