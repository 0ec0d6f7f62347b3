"""The backlog: pending jobs, kept from pass to pass. Which compete for capacity, in which line, and which do not.

A job is examined when it comes, leaves or changes, and when the quota changes. Otherwise a pass examines only jobs
whose place depends on the clock or on other jobs, so its cost follows what changed.

Invariant: a pass finds what it would find in a new backlog of the same jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler.decide.admission import Admission, backs_off
from scheduler.decide.capacity import amounts_of
from scheduler.decide.cooldown import cooldown_until, in_cooldown
from scheduler.decide.project_queue import Line, Request
from scheduler.decide.shares import Shares
from scheduler.decide.user_order import UserOrder
from scheduler.model import Job, JobStatus


class Backlog:
    """The pending jobs of one quota, by name.

    Attributes:
        lines: Competing jobs without a claim, per project and request; no line and no project is empty.
        claimants: Jobs that capacity is promised to.
        backing_off: Jobs in backoff, and those in cooldown that their project's share does not cover.
        over_ceiling: Jobs that ask for more than their project may ever hold.
        too_large: Jobs that ask for more than the whole pool has.
        refused: Jobs that cannot start at any capacity.
        dependent: Jobs that await the end of others.
        delegated: Jobs that another scheduler is to decide on.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.lines: dict[str, dict[Request, Line]] = {}
        self.claimants: dict[str, Job] = {}
        self.backing_off: dict[str, Job] = {}
        self.over_ceiling: dict[str, Job] = {}
        self.too_large: dict[str, Job] = {}
        self.refused: dict[str, Job] = {}
        self.dependent: dict[str, Job] = {}
        self.delegated: dict[str, Job] = {}
        # Jobs whose backoff is over.
        self._backoff_over: dict[str, Job] = {}
        # Claimants not promised by an earlier pass, whose victims are stopping.
        self._awaiting_victims: dict[str, Job] = {}
        self._order = UserOrder(admission.policy)
        # Pending changes of the lines: names that leave, and jobs that join.
        self._gone: dict[tuple[str, Request], set[str]] = {}
        self._come: dict[tuple[str, Request], dict[str, Job]] = {}

    def add(self, job: Job) -> None:
        admission = self._admission
        if admission.refuses(job):
            self.refused[job.name] = job
        elif job.after:
            self.dependent[job.name] = job
        elif job.delegated:
            self.delegated[job.name] = job
        elif admission.exceeds_pool(job):
            self.too_large[job.name] = job
        elif admission.exceeds_project(job):
            self.over_ceiling[job.name] = job
        elif job.not_before is not None or cooldown_until(job) is not None:
            self.backing_off[job.name] = job
        else:
            self._compete(job)

    def remove(self, job: Job) -> None:
        """Undo `add` of this value."""
        name = job.name
        self._backoff_over.pop(name, None)
        self._awaiting_victims.pop(name, None)
        for group in self._groups():
            if group.pop(name, None) is not None:
                return
        self._leave_line(job)

    def settle(
        self, now: float, order: UserOrder, leaving_for: Collection[str], jobs: Mapping[str, Job], shares: Shares
    ) -> None:
        """Bring everything up to `now`, after all jobs were added and removed.

        `leaving_for`: names of jobs that others are being evicted for. `shares`: what running jobs hold.
        """

        def must_wait(job: Job) -> bool:
            if backs_off(job, now):
                return True
            has_claim = job.promised or job.name in leaving_for
            return in_cooldown(job, now) and not has_claim and not shares.covers(job.project_id, amounts_of(job.demand))

        for job in [job for job in self._backoff_over.values() if must_wait(job)]:
            self.remove(job)
            self.backing_off[job.name] = job
        for job in [job for job in self.backing_off.values() if not must_wait(job)]:
            del self.backing_off[job.name]
            self._backoff_over[job.name] = job
            self._compete(job)
        for job in [job for name, job in self._awaiting_victims.items() if name not in leaving_for]:
            del self._awaiting_victims[job.name], self.claimants[job.name]
            self._join_line(job)
        for name in leaving_for:
            claimant = jobs.get(name)
            if claimant is not None and self._in_line(claimant):
                self._leave_line(claimant)
                self._awaiting_victims[name] = self.claimants[name] = claimant
        self._update_lines(order)

    def _compete(self, job: Job) -> None:
        if job.promised:
            self.claimants[job.name] = job
        else:
            self._join_line(job)

    def _in_line(self, job: Job) -> bool:
        return job.status is JobStatus.PENDING and not any(job.name in group for group in self._groups())

    def _groups(self) -> tuple[dict[str, Job], ...]:
        """Those of the jobs in no line."""
        return (
            self.claimants,
            self.backing_off,
            self.refused,
            self.too_large,
            self.over_ceiling,
            self.dependent,
            self.delegated,
        )

    def _join_line(self, job: Job) -> None:
        self._come.setdefault((job.project_id, Request.of(job)), {})[job.name] = job

    def _leave_line(self, job: Job) -> None:
        place = job.project_id, Request.of(job)
        if self._come.get(place, {}).pop(job.name, None) is None:
            self._gone.setdefault(place, set()).add(job.name)

    def _update_lines(self, order: UserOrder) -> None:
        reordered = {p for p in self.lines if order.ranks(p) != self._order.ranks(p)}
        self._order = order
        for project in reordered:
            lines = self.lines[project]
            self.lines[project] = {request: line.sorted_anew(order.place) for request, line in lines.items()}
        touched = {*self._gone, *self._come}
        projects = {project for project, _ in touched}
        # An earlier pass may still hold the old mappings, so they are replaced.
        self.lines.update({project: dict(self.lines.get(project, {})) for project in projects})
        for place in touched:
            project, request = place
            before = self.lines[project].pop(request, Line())
            line = before.changed(self._gone.get(place, ()), [*self._come.get(place, {}).values()], order.place)
            if line.by_place:
                self.lines[project][request] = line
        for project in projects:
            if not self.lines[project]:
                del self.lines[project]
        self._gone.clear()
        self._come.clear()
