"""Commands about quota files."""
