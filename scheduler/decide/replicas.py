"""Extra replicas of elastic jobs, and their units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.model import Job, JobStatus


@dataclass(frozen=True, slots=True)
class Replica:
    """One extra replica of a job; `scaling` is an index into the job's scalings."""

    job: Job
    scaling: int

    @property
    def units(self) -> Amounts:
        return amounts_of(self.job.scaling[self.scaling].per_replica)


def units_of(job: Job, extra: Sequence[int]) -> Amounts:
    units: Counter[str] = Counter()
    for scaling, count in zip(job.scaling, extra, strict=True):
        for resource, amount in scaling.per_replica.items():
            units[resource] += count * amount
    return amounts_of(units)


def as_stopping(job: Job, units: Amounts, claimant: str | None) -> Job:
    """Part of a running job's units, being given back, as a stopping job of its own."""
    return replace(job, status=JobStatus.STOPPING, charged=dict(units), evicted_for=claimant, shrinking_for=None)
