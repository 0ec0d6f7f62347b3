"""Gangs of TPU slices through the Cloud TPU API v2."""
