"""The order of jobs inside a project: priority, then users by decayed usage divided by weight, then age.

Usage changes every tick but its order seldom does. Places hold ranks, so sorted lists stay sorted while the ranks stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quota import Policy
from scheduler.model import Job

Place = tuple[int, int, float, str]

_NO_USAGE: Mapping[str, Mapping[str, float]] = MappingProxyType({})
_NO_RANKS: Mapping[str, int] = MappingProxyType({})


class UserOrder:
    def __init__(self, policy: Policy, usage: Mapping[str, Mapping[str, float]] = _NO_USAGE) -> None:
        self._ranks: dict[str, Mapping[str, int]] = {}
        for project, users in usage.items():
            rules = policy.rules(project)
            if rules.fifo:
                continue  # first in, first out for all users
            used = {user: amount / rules.user_weight(user) for user, amount in users.items()}
            ranks = {amount: rank for rank, amount in enumerate(sorted({0.0, *used.values()}))}
            self._ranks[project] = {user: ranks[amount] for user, amount in used.items() if ranks[amount]}

    def ranks(self, project: str) -> Mapping[str, int]:
        """Rank by user, ascending by usage from 1. Equals share a rank; users without usage are absent."""
        return self._ranks.get(project, _NO_RANKS)

    def same_as(self, other: UserOrder) -> bool:
        return all(self.ranks(project) == other.ranks(project) for project in {*self._ranks, *other._ranks})

    def place(self, job: Job) -> Place:
        """The job's place in its project, lowest first; unique."""
        ranks = self._ranks.get(job.project_id)
        return (job.priority, ranks.get(job.user_id, 0) if ranks else 0, job.queued_at, job.name)


def order_across(job: Job) -> tuple[int, float, str]:
    """The order of jobs of different projects; usage is not comparable between projects."""
    return (job.priority, job.queued_at, job.name)
