"""Whose turn it is inside a project: priority, then the users' decayed usage, then age.

Layer: `scheduler`, pure. A user's place is usage divided by weight: who has used less of what is due goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quota import Policy
from scheduler.model import Job

Place = tuple[int, float, float, str]

_NO_USAGE: Mapping[str, Mapping[str, float]] = MappingProxyType({})


class Turns:
    """The order of jobs inside their projects, for one pass."""

    def __init__(self, policy: Policy, usage: Mapping[str, Mapping[str, float]] = _NO_USAGE) -> None:
        """`usage` is that of `Snapshot.user_usage`."""
        self._policy = policy
        self._usage = usage
        self._known: dict[tuple[str, str], float] = {}

    def place(self, job: Job) -> Place:
        """The job's place among those of its project, least first; unique."""
        if not self._usage:
            return (job.priority, 0.0, job.queued_at, job.name)
        return (job.priority, self.used(job), job.queued_at, job.name)

    def used(self, job: Job) -> float:
        """What its user has used of the project, by weight."""
        key = (job.project_id, job.user_id)
        used = self._known.get(key)
        if used is None:
            usage = self._usage.get(job.project_id, {}).get(job.user_id, 0.0)
            weight = self._policy.rules(job.project_id).user_weight(job.user_id)
            used = self._known[key] = usage / weight
        return used


def order_across(job: Job) -> tuple[int, float, str]:
    """The order of jobs of different projects, where nothing else tells: what their users used does not compare."""
    return (job.priority, job.queued_at, job.name)
