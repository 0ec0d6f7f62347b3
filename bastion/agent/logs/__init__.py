"""A host's output on its way to the bucket."""
