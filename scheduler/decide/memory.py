"""What a scheduler remembers from pass to pass: the backlog, the incumbents, and what the quota refuses.

It equals a memory built anew from the same jobs.
"""

from __future__ import annotations

from itertools import compress
from operator import is_not

from quota import Policy
from scheduler.decide.admission import Admission
from scheduler.decide.backlog import Backlog
from scheduler.decide.incumbents import Incumbents
from scheduler.model import Job, JobStatus, Snapshot


class Remembered:
    def __init__(self, snapshot: Snapshot) -> None:
        self._basis = _basis(snapshot)
        self.admission = Admission(snapshot.policy, check_membership=snapshot.check_membership, held=snapshot.held)
        self.backlog = Backlog(self.admission)
        self.incumbents = Incumbents(self.admission.policy)
        self.jobs: dict[str, Job] = {}

    def matches(self, snapshot: Snapshot) -> bool:
        return self._basis == _basis(snapshot)

    def take_over(self, jobs: dict[str, Job]) -> bool:
        """Replace the jobs; return whether anything changed."""
        before = self.jobs
        fresh = list(compress(jobs.values(), map(is_not, jobs.values(), map(before.get, jobs))))
        known = sum(job.name in before for job in fresh)
        gone = before.keys() - jobs.keys() if len(jobs) - len(fresh) + known < len(before) else ()
        for name in gone:
            self._group(before[name]).remove(before[name])
        for job in fresh:
            former = before.get(job.name)
            if former is not None:
                self._group(former).remove(former)
            self._group(job).add(job)
        self.jobs = jobs
        return bool(fresh or gone)

    def _group(self, job: Job) -> Backlog | Incumbents:
        return self.backlog if job.status is JobStatus.PENDING else self.incumbents


def _basis(snapshot: Snapshot) -> tuple[Policy | None, bool, bool]:
    return snapshot.policy, snapshot.check_membership, snapshot.held
