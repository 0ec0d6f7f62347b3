"""A host's output folder, stored and restored."""
