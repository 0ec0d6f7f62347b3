"""Carries out effects: writes to the bucket, requests to the provisioners."""
