"""The published status: building, packing and reading it."""
