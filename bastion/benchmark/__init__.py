"""Benchmarks: a matrix of jobs, their results and reports. A client of the queue; no part of the daemon."""
