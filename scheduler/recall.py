"""When a job has waited too long: nobody starves.

Layer: `scheduler`, pure. Room is made for such a job by stopping borrowers, all at once: until enough of them can go
together nothing is drained or held idle for it. One job in a pass, the oldest of those for which there could be room.
"""

from __future__ import annotations

from scheduler.model import Job
from scheduler.shares import Shares

DEADLINE_SECONDS = 24 * 3600.0
# After an eviction a job that was recalled before waits at least so long, doubled for each eviction that saved nothing.
_BACKOFF_SECONDS = 1800.0
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
    pause = _BACKOFF_SECONDS * 2 ** min(job.futile_evictions, _DOUBLINGS_MAX)
    never_entitled = any(amount > shares.entitlement(job.project_id, kind) for kind, amount in job.demand.items())
    return never_entitled and now - (job.evicted_at or 0.0) >= pause
