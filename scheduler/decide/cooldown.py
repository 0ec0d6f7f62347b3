"""Cooldown: how long a job does not borrow after evictions that saved no work.

Without it a large job would start in every gap that an owner leaves, and be evicted each time. A job starts within its
project's share at any time.
"""

from __future__ import annotations

from scheduler.model import Job

# Evictions in a row without saved work after which the cooldown applies.
FUTILE_MAX = 2
# The longest first cooldown; each further eviction in a row without saved work doubles it.
_FIRST_MAX_SECONDS = 2 * 3600.0
_MAX_SECONDS = 24 * 3600.0
_DOUBLINGS_MAX = 20


def cooldown_seconds(job: Job) -> float:
    """The mean duration of the job's evicted attempts, start and stop included.

    Doubled for each eviction in a row after the second that saved nothing.
    """
    first = min(job.evicted_seconds / max(1, job.evictions), _FIRST_MAX_SECONDS)
    doublings = min(max(0, job.futile_evictions - FUTILE_MAX), _DOUBLINGS_MAX)
    return min(first * float(2**doublings), _MAX_SECONDS)


def cooldown_until(job: Job) -> float | None:
    if job.futile_evictions < FUTILE_MAX or job.delegated:
        return None
    return (job.evicted_at or 0.0) + cooldown_seconds(job)


def in_cooldown(job: Job, now: float) -> bool:
    until = cooldown_until(job)
    return until is not None and now < until
