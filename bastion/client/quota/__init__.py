"""Upload quota files, and predict their effects."""
