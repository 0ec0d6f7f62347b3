"""The published status: building it, packing it, and reading it back."""
