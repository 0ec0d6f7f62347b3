"""How much longer jobs hold their capacity: declared by their owners, or drawn from what jobs like them took before.

Layer: `scheduler`, pure. History is looked at from near to far: jobs of the same project, user and demand; of the same
project and demand; of the project; all. The first level counts of which at least `SAMPLES_MIN` jobs took longer than
the job in question has run already, so what is drawn is conditional on its age. With fewer of them at every level
nobody knows, and that is the answer: a job that outlasted all others may run for another minute or another month.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.model import Job

# Fewer durations say too little about the spread of the next one.
SAMPLES_MIN = 5

_Level = tuple[object, ...]


class JobProfile(NamedTuple):
    """What makes jobs alike as to how long they take.

    Attributes:
        demand: Units per resource type above 0, sorted by type.
    """

    project_id: str
    user_id: str
    demand: Amounts

    @staticmethod
    def of(job: Job) -> JobProfile:
        return JobProfile(job.project_id, job.user_id, amounts_of(job.demand))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """What is left of a job's duration, each of the values as likely as any other.

    Attributes:
        totals: Whole durations in seconds, ascending; all of them longer than `age`.
        age: Seconds that the job has run already.
    """

    totals: tuple[float, ...]
    age: float = 0.0


class Durations:
    """What is known of how long jobs hold their capacity."""

    def __init__(
        self, history: Iterable[tuple[JobProfile, float]] = (), declared: Mapping[str, float] | None = None
    ) -> None:
        """What is known.

        Args:
            history: Jobs that ended by themselves, and for how many seconds each held its capacity.
            declared: By the names of jobs: seconds that their owners expect. Beats history, until a job has run longer.
        """
        self._declared = dict(declared or {})
        levels: dict[_Level, list[float]] = {}
        for profile, seconds in history:
            if seconds > 0:
                for level in _levels(profile):
                    levels.setdefault(level, []).append(seconds)
        self._totals = {level: tuple(sorted(found)) for level, found in levels.items()}

    def remaining(self, job: Job, age: float = 0.0) -> Remaining | None:
        """How much longer a job runs that has run for `age` seconds; None: nobody knows."""
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
    """From the nearest to the farthest."""
    return (
        (profile.project_id, profile.user_id, profile.demand),
        (profile.project_id, profile.demand),
        (profile.project_id,),
        (),
    )
