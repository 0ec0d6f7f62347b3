"""Limits on queued jobs: per user of a project, per project, and for all users without a project together.

A queued job costs the daemon memory and time, and anyone who can write to the bucket can submit any number. A spec over
a limit is not refused; it stays in the bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from quota import Policy

PER_USER = "max_queued_jobs_per_user"
PER_PROJECT = "max_queued_jobs"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose limit a job counts for; both fields are empty for users without a project."""

    project_id: str
    user_id: str


OUTSIDERS = Owner("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """The limit that an owner reaches first; `queued` may exceed a lowered `limit`.

    `rule` is the quota file's key, empty for users without a project.
    """

    rule: str
    queued: int
    limit: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.queued)


class QueueCounts:
    """The queued jobs of each owner, updated while jobs are accepted."""

    def __init__(self, policy: Policy | None, records: Iterable[JobRecord]) -> None:
        """Count the records. `policy` is the quota file in force; without one nobody is a member."""
        self._policy = policy
        self._by_owner: Counter[Owner] = Counter()
        self._by_project: Counter[str] = Counter()
        for record in records:
            if record.status is Status.PENDING:
                self.take(self.owner(record.job.project_id, record.job.user_id))

    def owner(self, project_id: str, user_id: str) -> Owner:
        if self._policy is None or not self._policy.is_member(user_id, project_id):
            return OUTSIDERS
        return Owner(project_id, user_id)

    def take(self, owner: Owner) -> None:
        self._by_owner[owner] += 1
        self._by_project[owner.project_id] += 1

    def limit(self, owner: Owner) -> QueueLimit:
        queued = self._by_owner[owner]
        if owner == OUTSIDERS or self._policy is None:
            return QueueLimit(rule="", queued=queued, limit=limits.OUTSIDERS_QUEUED_JOBS_MAX)
        rules = self._policy.rules(owner.project_id)
        own = QueueLimit(rule=PER_USER, queued=queued, limit=rules.max_queued_jobs_per_user)
        of_project = self._by_project[owner.project_id]
        whole = QueueLimit(rule=PER_PROJECT, queued=of_project, limit=rules.max_queued_jobs)
        return min(own, whole, key=lambda limit: limit.free)
