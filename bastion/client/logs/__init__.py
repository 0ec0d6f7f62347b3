"""Read jobs' output from the bucket."""
