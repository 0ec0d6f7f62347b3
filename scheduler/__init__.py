"""The scheduler: a snapshot in, a plan out. Pure: no I/O, clock, randomness or logging.

The same snapshot and instant give the same plan, bit for bit, whatever the order of `snapshot.jobs`.
"""

from __future__ import annotations

from scheduler.decide.lending import RecentHoldings
from scheduler.model import (
    Decision,
    Job,
    JobStatus,
    Plan,
    PoolUsage,
    ProjectUsage,
    Reason,
    ReasonCode,
    Scaling,
    Snapshot,
    Verdict,
)
from scheduler.scheduling import Scheduler, schedule
from scheduler.usage_history import UsageHistory

__all__ = [
    "Decision",
    "Job",
    "JobStatus",
    "Plan",
    "PoolUsage",
    "ProjectUsage",
    "Reason",
    "ReasonCode",
    "RecentHoldings",
    "Scaling",
    "Scheduler",
    "Snapshot",
    "UsageHistory",
    "Verdict",
    "schedule",
]
