"""A trace through a policy on a grid of ticks, with immediate evictions."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from scheduler.model import Job
from scheduler.simulation.replay.trace import TraceJob, Window
from scheduler.simulation.simulator import NEVER, SimulatedJob, Simulator

# A policy counts as stuck after this long (plus the longest job, while any runs) without an arrival or an end. Longer
# than any backoff or deadline of a policy.
_PATIENCE_SECONDS = 7 * 86_400.0


@dataclass(slots=True, kw_only=True)
class ReplayJob(SimulatedJob):
    """A job of the trace; `order` is its index.

    `first_start` is negative before. `most_futile`: most consecutive evictions without a new checkpoint.
    """

    trace: TraceJob
    first_start: float = -1.0
    most_futile: int = 0

    @property
    def chips(self) -> int:
        return self.trace.chips


class ReplayPolicy(Protocol):
    """Evicts and starts jobs at a tick.

    `time_dependent`: the next tick may decide otherwise even if nothing arrives or ends.
    """

    @property
    def time_dependent(self) -> bool: ...

    def decide(self, replay: Replay, /) -> None: ...


@dataclass(slots=True)
class Owed:
    """Share deficit and owner return of one project, integrated exactly over time."""

    owed: int = 0
    held: int = 0
    since: float = 0.0
    jobs: dict[int, float] = field(default_factory=dict)
    owed_integral: float = 0.0
    due_integral: float = 0.0
    longest_return: float = 0.0


@dataclass(slots=True)
class Outcome:
    """The result of a replay; `shares`: chips held by project, at instants `sample` apart within the window."""

    window: Window
    jobs: list[ReplayJob]
    owed: dict[str, Owed]
    allocated: float = 0.0
    useful: float = 0.0
    wasted: float = 0.0
    preemptions: int = 0
    in_quota_evictions: int = 0
    decision_seconds: list[float] = field(default_factory=list)
    shares: list[tuple[float, dict[str, int]]] = field(default_factory=list)


class Replay(Simulator[ReplayJob]):
    """One replay.

    Attributes:
        trace: All jobs, in submission order.
        pending: Indices of waiting jobs by project, ascending.
        running: Indices of running jobs by project.
        held, free: Chips in use by project, and not in use.
    """

    def __init__(
        self,
        window: Window,
        policy: ReplayPolicy,
        *,
        tick: float,
        checkpoint: float,
        restart: float,
        sample: float = 0.0,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Prepare a run.

        Args:
            tick: Seconds between decisions.
            checkpoint: Seconds of progress between checkpoints; 0: none.
            restart: Seconds that a stopped job loses when it continues.
            sample: Seconds between samples in `Outcome.shares`; 0: none.
            timer: A clock in seconds, to time decisions.
        """
        demands = {job.chips: {window.resource_type: job.chips} for job in window.jobs}
        self.trace = [
            ReplayJob(
                job=Job(
                    name=job.name,
                    project_id=job.project,
                    user_id=job.user,
                    queued_at=job.submit,
                    demand=demands[job.chips],
                ),
                order=index,
                duration=job.duration,
                checkpoint=checkpoint,
                trace=job,
            )
            for index, job in enumerate(window.jobs)
        ]
        super().__init__(0.0, self.trace)
        self.window = window
        self.restart_overhead = restart
        self._policy = policy
        self._tick = tick
        self._sample = sample
        self._timer = timer
        self._longest = max((job.duration for job in window.jobs), default=0.0)
        projects = sorted(window.shares)
        self.pending: dict[str, list[int]] = {project: [] for project in projects}
        self.running: dict[str, set[int]] = {project: set() for project in projects}
        self.held = dict.fromkeys(projects, 0)
        self.free = window.pool
        self._changed = False
        # The last arrival or end.
        self._latest = 0.0
        # Projects whose jobs changed since their integrals were last brought up to date.
        self._dirty: set[str] = set()
        self._outcome = Outcome(window=window, jobs=self.trace, owed={project: Owed() for project in projects})

    def run(self) -> Outcome:
        """Replay the window, and on until every job has ended or the policy is stuck."""
        tick = 0
        while self.jobs or self._arrivals:
            now = tick * self._tick
            if now > self._latest + _PATIENCE_SECONDS + (self._longest if self.free < self.window.pool else 0.0):
                break
            self.advance(now)
            if self._changed or self._policy.time_dependent:
                self._decide()
            self._settle(now)
            tick += 1
            if not self._changed and not self._policy.time_dependent and (soon := self.next_change()) < NEVER:
                tick = max(tick, math.ceil(soon / self._tick))
        self._look(self.window.seconds)
        for project in self.held:
            self._integrate(project, self.window.seconds)
        return self._outcome

    def _decide(self) -> None:
        self._look(self.now)
        self._changed = False
        began = self._timer()
        self._policy.decide(self)
        self._outcome.decision_seconds.append(self._timer() - began)

    # -- what happens to jobs -----------------------------------------------------------------------------------

    def arrive(self, job: ReplayJob) -> None:
        super().arrive(job)
        self._changed, self._latest = True, self.now
        self._queue(job)

    def start(self, name: str, tier: int | None = 0) -> None:
        super().start(name, tier)
        job = self._simulated[name]
        project = job.trace.project
        pending = self.pending[project]
        del pending[bisect_left(pending, job.order)]
        if job.first_start < 0:
            job.first_start = self.now
        self.running[project].add(job.order)
        self.held[project] += job.chips
        self.free -= job.chips
        assert self.free >= 0, "the policy uses more than the pool"
        self._changed = True
        self._dirty.add(project)

    def requeue(self, name: str, **changes: Any) -> None:
        super().requeue(name, **changes)
        self._queue(self._simulated[name])

    def _eviction(self, job: ReplayJob) -> dict[str, Any]:
        now, kept = self.now, job.checkpointed(self.now)
        if now <= self.window.seconds:
            self._outcome.preemptions += 1
            self._outcome.wasted += job.chips * (job.progress(now) - kept + self.restart_overhead)
            if self.held[job.trace.project] <= self.window.entitlements[job.trace.project]:
                self._outcome.in_quota_evictions += 1
        self._account(job, now, kept=kept - job.saved)
        self._changed = True
        changes = super()._eviction(job)
        job.most_futile = max(job.most_futile, changes["futile_evictions"])
        return changes

    def _free(self, job: ReplayJob, _instant: float) -> None:
        project = job.trace.project
        self.running[project].remove(job.order)
        self.held[project] -= job.chips
        self.free += job.chips
        self._dirty.add(project)

    def _end(self, job: ReplayJob, instant: float) -> None:
        self._look(instant)
        self._account(job, instant, kept=job.duration - job.saved)
        self._changed, self._latest = True, instant
        super()._end(job, instant)
        self._settle(instant)

    def _queue(self, job: ReplayJob) -> None:
        insort(self.pending[job.trace.project], job.order)
        self._dirty.add(job.trace.project)

    # -- what is measured ---------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Take the samples up to `now`, before anything changes there."""
        shares = self._outcome.shares
        while self._sample and (at := len(shares) * self._sample) <= min(now, self.window.seconds):
            shares.append((at, dict(self.held)))

    def _account(self, job: ReplayJob, now: float, *, kept: float) -> None:
        """Count the part within the window of a segment that ends at `now`."""
        until = min(now, self.window.seconds)
        length = until - job.started
        if length <= 0:
            return
        self._outcome.allocated += job.chips * length
        self._outcome.useful += job.chips * (kept if now <= until else max(0.0, length - job.overhead))

    def _settle(self, now: float) -> None:
        for project in self._dirty:
            self._owe(project, now)
        self._dirty.clear()

    def _owe(self, project: str, now: float) -> None:
        owed = self._outcome.owed[project]
        self._integrate(project, now)
        unused = self.window.entitlements[project] - self.held[project]
        found: dict[int, float] = {}
        for index in self.pending[project]:
            if unused <= 0:
                break
            if self.trace[index].chips <= unused:
                unused -= self.trace[index].chips
                found[index] = owed.jobs.get(index, now)
        for index, since in owed.jobs.items():
            if index not in found and self.trace[index].started == now and since < self.window.seconds:
                owed.longest_return = max(owed.longest_return, now - since)
        owed.jobs = found
        owed.owed = sum(self.trace[index].chips for index in found)

    def _integrate(self, project: str, now: float) -> None:
        owed = self._outcome.owed[project]
        length = min(now, self.window.seconds) - owed.since
        if length > 0:
            owed.owed_integral += owed.owed * length
            owed.due_integral += length * (owed.owed + min(owed.held, self.window.entitlements[project]))
        owed.since = now
        owed.held = self.held[project]
