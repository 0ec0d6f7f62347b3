"""Replaying a trace of jobs through a scheduling policy, and the yardsticks of what it did.

Layer: scheduler, pure. One resource type, no topology, eviction is immediate, a job checkpoints at a fixed interval of
its own progress. `engine` moves time, `policies` decide, `yardsticks` measure.
"""
