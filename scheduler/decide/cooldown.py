"""How long a job that was stopped in vain, again and again, leaves idle capacity to others.

Layer: `scheduler`, pure. A loan that is called back before any work was saved helps nobody. Without a pause a large job
would start in every gap that an owner leaves, and be stopped in each. The pause doubles, so in any span of time there
are few such starts. It is a pause in borrowing only: within its project's share a job starts whenever that is free. A
job that saves its work before it is stopped never rests, however often that happens: it gets on.
"""

from __future__ import annotations

from scheduler.model import Job

# So many evictions in a row that saved nothing make a job rest.
FUTILE_MAX = 2
# The first rest is at most so long; each further eviction in a row that saved nothing doubles it.
_FIRST_MAX_SECONDS = 2 * 3600.0
_MAX_SECONDS = 24 * 3600.0
_DOUBLINGS_MAX = 20


def cooldown_seconds(job: Job) -> float:
    """How long after its last eviction a job should borrow nothing.

    As long as an evicted attempt of it took on average, its start and its stop included: whoever lost a minute rests
    for a minute. Doubled with each eviction in a row after the second that saved nothing.
    """
    first = min(job.evicted_seconds / max(1, job.evictions), _FIRST_MAX_SECONDS)
    doublings = min(max(0, job.futile_evictions - FUTILE_MAX), _DOUBLINGS_MAX)
    return min(first * float(2**doublings), _MAX_SECONDS)


def cooldown_until(job: Job) -> float | None:
    """Until when a waiting job borrows nothing; None where it was not stopped in vain too often."""
    return (job.evicted_at or 0.0) + cooldown_seconds(job) if job.futile_evictions >= FUTILE_MAX else None


def in_cooldown(job: Job, now: float) -> bool:
    """Whether that instant is still to come."""
    until = cooldown_until(job)
    return until is not None and now < until
