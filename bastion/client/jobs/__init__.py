"""Submitting, following and judging jobs."""
