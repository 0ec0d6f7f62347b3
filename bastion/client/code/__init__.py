"""Packing the code of a job."""
