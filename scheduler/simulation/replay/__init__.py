"""Replays a trace of jobs through a scheduling policy and measures the result.

One resource type, no topology, immediate evictions, checkpoints at a fixed interval of a job's own progress. `engine`
moves time, `policies` decide, `yardsticks` measure.
"""
