"""How much longer jobs hold their capacity: declared by their owners, or drawn from past jobs.

History is searched from near to far: same project, user and demand; same project and demand; same project; all jobs.
The first level with at least `SAMPLES_MIN` jobs that ran longer than this one has so far is used. With no such level
the duration is unknown.
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
    """The features by which jobs have similar durations; `demand` is sorted by type."""

    project_id: str
    user_id: str
    demand: Amounts

    @staticmethod
    def of(job: Job) -> JobProfile:
        return JobProfile(job.project_id, job.user_id, amounts_of(job.demand))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The duration of a job as equally likely values.

    Attributes:
        totals: Whole durations in seconds, ascending, all longer than `age`.
        age: Seconds that the job has run.
    """

    totals: tuple[float, ...]
    age: float = 0.0


class Durations:
    def __init__(
        self, history: Iterable[tuple[JobProfile, float]] = (), declared: Mapping[str, float] | None = None
    ) -> None:
        """Index the history.

        Args:
            history: Jobs that ended by themselves, and the seconds each held its capacity.
            declared: By job name, the seconds its owner expects; overrides history until the job has run longer.
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
