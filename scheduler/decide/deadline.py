"""The deadline after which a waiting job is overdue and may have borrowers evicted."""

from __future__ import annotations

from scheduler.decide.shares import Shares
from scheduler.model import Job

_HOURS = 24
DEADLINE_SECONDS = _HOURS * 3600.0
TOO_LONG = f"more than {_HOURS} hours"

# After an eviction; doubles with each one in a row that saved no work.
_PAUSE_SECONDS = 1800.0
_DOUBLINGS_MAX = 20


def overdue_since(now: float) -> float:
    """Jobs queued at this instant or before are past the deadline."""
    return now - DEADLINE_SECONDS


def is_overdue(job: Job, shares: Shares, now: float) -> bool:
    """Whether borrowers may be evicted for a waiting job that its project's share does not cover.

    True for any job past the deadline until its first start. A job larger than its project's entitlement is overdue
    again some time after an eviction.
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
    pause: float = _PAUSE_SECONDS * 2 ** min(job.futile_evictions, _DOUBLINGS_MAX)
    return min(pause, DEADLINE_SECONDS)


def started_late(job: Job) -> bool:
    """Whether a running job was past the deadline when it first started."""
    return not job.evictions and job.started_at is not None and job.queued_at <= overdue_since(job.started_at)
