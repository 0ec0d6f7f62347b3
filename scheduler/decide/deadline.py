"""When a job has waited too long: nobody starves.

Layer: `scheduler`, pure.
"""

from __future__ import annotations

from scheduler.decide.shares import Shares
from scheduler.model import Job

_HOURS = 24
DEADLINE_SECONDS = _HOURS * 3600.0
TOO_LONG = f"more than {_HOURS} hours"

# After an eviction; doubled for each one in a row that saved nothing.
_PAUSE_SECONDS = 1800.0
_DOUBLINGS_MAX = 20


def overdue_since(now: float) -> float:
    """What was queued at that instant or before has waited too long."""
    return now - DEADLINE_SECONDS


def is_overdue(job: Job, shares: Shares, now: float) -> bool:
    """Whether a waiting job may have borrowers stopped for it though it is not within its project's share.

    Every job may for its first start. A job larger than its project's entitlement, which no share ever protects, may
    again after an eviction.
    """
    if job.queued_at > overdue_since(now):
        return False
    if not job.evictions:
        return True
    never_entitled = any(
        amount > shares.entitlement(job.project_id, resource) for resource, amount in job.demand.items()
    )
    return never_entitled and now - (job.evicted_at or 0.0) >= _pause_seconds(job)


def _pause_seconds(job: Job) -> float:
    """How long after its last eviction nobody is stopped for a job again."""
    pause: float = _PAUSE_SECONDS * 2 ** min(job.futile_evictions, _DOUBLINGS_MAX)
    return min(pause, DEADLINE_SECONDS)


def started_late(job: Job) -> bool:
    """Whether a running job had waited too long when it was first started."""
    return not job.evictions and job.started_at is not None and job.queued_at <= overdue_since(job.started_at)
