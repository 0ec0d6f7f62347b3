"""Builds the `World` from the bucket and the provisioners."""
