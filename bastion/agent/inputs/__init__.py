"""Inputs of a job: listed once per attempt, fetched and verified on each host, kept in a cache."""
