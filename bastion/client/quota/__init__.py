"""Uploading quota files, and telling what they would do."""
