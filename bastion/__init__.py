"""Bastion: a fair-share job scheduler for TPU and GPU slices, on one small VM and a bucket."""

__version__ = "0.1.0"
