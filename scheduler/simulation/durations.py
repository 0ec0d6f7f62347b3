"""How much longer jobs hold their capacity: declared by their owners, or drawn from past jobs; at most their own limit.

Past jobs are searched by project, user and demand; by project and demand; by project; and all. The first level with
at least `SAMPLES_MIN` jobs that ran longer than this one has so far counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.model import Job

# Fewer durations say too little about the spread.
SAMPLES_MIN = 5

_Level = tuple[object, ...]


class JobProfile(NamedTuple):
    """What jobs of similar durations share; `demand` is sorted by type."""

    project_id: str
    user_id: str
    demand: Amounts

    @staticmethod
    def of(job: Job) -> JobProfile:
        return JobProfile(job.project_id, job.user_id, amounts_of(job.demand))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Equally likely durations in seconds, `totals`, ascending and longer than the `age` of the job."""

    totals: tuple[float, ...]
    age: float = 0.0


class Durations:
    def __init__(
        self, history: Iterable[tuple[JobProfile, float]] = (), declared: Mapping[str, float] | None = None
    ) -> None:
        """Index the history: jobs that ended by themselves, and the seconds each held its capacity.

        `declared`: by job name, the seconds its owner expects; overrides history until the job has run longer.
        """
        self._declared = dict(declared or {})
        levels: dict[_Level, list[float]] = {}
        for profile, seconds in history:
            if seconds > 0:
                for level in _levels(profile):
                    levels.setdefault(level, []).append(seconds)
        self._totals = {level: tuple(sorted(found)) for level, found in levels.items()}

    def remaining(self, job: Job, age: float = 0.0) -> Remaining | None:
        """The possible durations of a job that has run for `age` seconds; None: unknown."""
        left, most = self._estimated(job, age), job.max_run_seconds
        if most is None:
            return left
        totals = (most,) if left is None else tuple(min(total, most) for total in left.totals)
        return Remaining(totals=totals, age=min(age, most))

    def _estimated(self, job: Job, age: float) -> Remaining | None:
        declared = self._declared.get(job.name)
        if declared is not None and declared > age:
            return Remaining(totals=(declared,), age=age)
        for level in _levels(JobProfile.of(job)):
            totals = self._totals.get(level, ())
            first = bisect_right(totals, age)
            if len(totals) - first >= SAMPLES_MIN:
                return Remaining(totals=totals[first:], age=age)
        return None


def _levels(profile: JobProfile) -> tuple[_Level, ...]:
    return (
        (profile.project_id, profile.user_id, profile.demand),
        (profile.project_id, profile.demand),
        (profile.project_id,),
        (),
    )
