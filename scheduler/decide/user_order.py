"""Whose turn it is inside a project: priority, then the users' decayed usage, then age.

Layer: `scheduler`, pure. A user's place is usage divided by weight: who has used less of what is due goes first. Usage
changes in every tick and its order seldom, so places hold ranks: while they stay, what is sorted stays sorted.
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
    """The order of jobs inside their projects, for one pass."""

    def __init__(self, policy: Policy, usage: Mapping[str, Mapping[str, float]] = _NO_USAGE) -> None:
        """`usage` is that of `Snapshot.user_usage`."""
        self._ranks: dict[str, Mapping[str, int]] = {}
        for project, users in usage.items():
            rules = policy.rules(project)
            if rules.fifo:
                continue  # first in, first out, whoever it is
            used = {user: amount / rules.user_weight(user) for user, amount in users.items()}
            ranks = {amount: rank for rank, amount in enumerate(sorted({0.0, *used.values()}))}
            self._ranks[project] = {user: ranks[amount] for user, amount in used.items() if ranks[amount]}

    def ranks(self, project: str) -> Mapping[str, int]:
        """The users of the project who have used anything, by how much; from 1, equals have the same rank."""
        return self._ranks.get(project, _NO_RANKS)

    def same_as(self, other: UserOrder) -> bool:
        """Whether jobs stand in the same order by the other."""
        return all(self.ranks(project) == other.ranks(project) for project in {*self._ranks, *other._ranks})

    def place(self, job: Job) -> Place:
        """The job's place among those of its project, least first; unique."""
        ranks = self._ranks.get(job.project_id)
        return (job.priority, ranks.get(job.user_id, 0) if ranks else 0, job.queued_at, job.name)


def order_across(job: Job) -> tuple[int, float, str]:
    """The order of jobs of different projects, where nothing else tells: what their users used does not compare."""
    return (job.priority, job.queued_at, job.name)
