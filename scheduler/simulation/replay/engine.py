"""Moves a trace through time: arrivals, ends and ticks; a policy decides at the ticks.

Invariants:

* Between ticks jobs only end. A job that arrives is seen at the next tick.
* A stopped job keeps its progress up to its last checkpoint and pays a restart's overhead when it continues.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scheduler.simulation.replay.trace import TraceJob, Window

# A policy counts as stuck after this long (plus the longest job, while any runs) without an arrival or an end. Longer
# than any backoff or deadline of a policy.
_PATIENCE_SECONDS = 7 * 86_400.0


@dataclass(slots=True)
class ReplayJob:
    """The state of a job during the replay.

    Attributes:
        index: Position in submission order over all projects.
        saved: Checkpointed progress, in seconds of work.
        started: Start of the current segment; negative while it does not run.
        overhead: Seconds at the start of the segment without progress.
        futile: Consecutive segments that an eviction ended without a new checkpoint.
    """

    index: int
    trace: TraceJob
    saved: float = 0.0
    started: float = -1.0
    overhead: float = 0.0
    segment: int = 0
    first_start: float = -1.0
    end: float = -1.0
    evictions: int = 0
    futile: int = 0
    most_futile: int = 0
    evicted_at: float = -1.0
    evicted_seconds: float = 0.0

    @property
    def chips(self) -> int:
        return self.trace.chips

    @property
    def running(self) -> bool:
        return self.started >= 0

    def progress(self, now: float) -> float:
        """Seconds of work done by a running job, checkpointed or not."""
        return min(self.trace.duration, self.saved + max(0.0, now - self.started - self.overhead))

    def loss(self, now: float, checkpoint: float, restart: float) -> float:
        """Chip-seconds that an eviction now would cost: unsaved work and the restart."""
        progress = self.progress(now)
        return self.chips * (progress - checkpointed(progress, self.saved, checkpoint) + restart)


def checkpointed(progress: float, saved: float, interval: float) -> float:
    """The part of `progress` in a checkpoint; interval 0: no checkpoints."""
    return max(saved, progress // interval * interval) if interval else saved


@dataclass(slots=True)
class State:
    """The input of a policy.

    Attributes:
        pending: Indices of waiting jobs by project, in submission order.
        running: Indices of running jobs by project.
        held: Chips in use by project.
        changed: Indices of jobs that arrived, ended, stopped or started since the last decision.
    """

    window: Window
    jobs: Sequence[ReplayJob]
    checkpoint: float
    restart: float
    pending: dict[str, list[int]]
    running: dict[str, set[int]]
    held: dict[str, int]
    free: int
    changed: set[int] = field(default_factory=set)


class Round(NamedTuple):
    """Indices of jobs to stop, and then of jobs to start."""

    stop: Sequence[int]
    start: Sequence[int]


class ReplayPolicy(Protocol):
    """Decides which jobs stop and start at a tick.

    `time_dependent`: whether the next tick may decide otherwise even if nothing arrives or ends.
    """

    @property
    def time_dependent(self) -> bool: ...

    def decide(self, state: State, now: float, /) -> Sequence[Round]:
        """What to do at this tick, in order; everything must fit the pool after each round."""
        ...


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


class Replay:
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
        self._timer = timer
        self._sample = sample
        self._longest = max((job.duration for job in window.jobs), default=0.0)
        self._window = window
        self._policy = policy
        self._tick = tick
        self._jobs = [ReplayJob(index=index, trace=job) for index, job in enumerate(window.jobs)]
        projects = sorted(window.shares)
        self._state = State(
            window=window,
            jobs=self._jobs,
            checkpoint=checkpoint,
            restart=restart,
            pending={project: [] for project in projects},
            running={project: set() for project in projects},
            held=dict.fromkeys(projects, 0),
            free=window.pool,
        )
        self._ends: list[tuple[float, int, int]] = []
        self._dirty: set[str] = set()
        self._outcome = Outcome(window=window, jobs=self._jobs, owed={project: Owed() for project in projects})

    def run(self) -> Outcome:
        """Replay the window, and on until every job has ended or the policy is stuck."""
        arriving = deque(self._jobs)
        left = len(self._jobs)
        tick, changed = 0, False
        now = latest = 0.0
        while left:
            at_tick = tick * self._tick
            if at_tick > latest + _PATIENCE_SECONDS + (self._longest if self._state.free < self._window.pool else 0.0):
                break
            while self._ends and self._ends[0][0] <= at_tick:
                now = self._ends[0][0]
                ended = self._end_one(now)
                left -= ended
                changed = changed or bool(ended)
                self._settle(now)
                latest = now if ended else latest
            while arriving and arriving[0].trace.submit <= at_tick:
                job = arriving.popleft()
                insort(self._state.pending[job.trace.project], job.index)
                self._dirty.add(job.trace.project)
                self._state.changed.add(job.index)
                changed = True
                latest = at_tick
            if changed or self._policy.time_dependent:
                changed = self._decide(at_tick)
            self._settle(at_tick)
            tick += 1
            if not changed and not self._policy.time_dependent:
                # Nothing to decide before the next arrival or end.
                soon = min(
                    arriving[0].trace.submit if arriving else float("inf"),
                    self._ends[0][0] if self._ends else float("inf"),
                )
                if soon < float("inf"):
                    tick = max(tick, math.ceil(soon / self._tick))
        self._look(self._window.seconds)
        for project in self._state.held:
            self._integrate(project, max(now, self._window.seconds))
        return self._outcome

    # -- events -------------------------------------------------------------------------------------------------

    def _end_one(self, now: float) -> int:
        _, index, segment = heapq.heappop(self._ends)
        job = self._jobs[index]
        if job.segment != segment or not job.running:
            return 0  # it was stopped meanwhile
        self._look(now)
        self._account(job, now, kept=job.trace.duration - job.saved)
        job.saved, job.started, job.end = job.trace.duration, -1.0, now
        self._release(job)
        return 1

    def _decide(self, now: float) -> bool:
        self._look(now)
        began = self._timer()
        rounds = self._policy.decide(self._state, now)
        self._outcome.decision_seconds.append(self._timer() - began)
        self._state.changed.clear()
        for stop, start in rounds:
            for index in stop:
                self._stop(self._jobs[index], now)
            for index in start:
                self._start(self._jobs[index], now)
            assert self._state.free >= 0, "the policy gave away more than there is"
        return any(stop or start for stop, start in rounds)

    def _stop(self, job: ReplayJob, now: float) -> None:
        project = job.trace.project
        if now <= self._window.seconds:
            self._outcome.preemptions += 1
            self._outcome.wasted += job.loss(now, self._state.checkpoint, self._state.restart)
            if self._state.held[project] <= self._window.entitlements[project]:
                self._outcome.in_quota_evictions += 1
        progress = job.progress(now)
        kept = checkpointed(progress, job.saved, self._state.checkpoint)
        job.futile = job.futile + 1 if kept <= job.saved else 0
        job.most_futile = max(job.most_futile, job.futile)
        self._account(job, now, kept=kept - job.saved)
        job.evictions += 1
        job.evicted_at = now
        job.evicted_seconds += now - job.started
        job.saved, job.started = kept, -1.0
        self._release(job)
        insort(self._state.pending[project], job.index)

    def _start(self, job: ReplayJob, now: float) -> None:
        project = job.trace.project
        pending = self._state.pending[project]
        del pending[bisect_left(pending, job.index)]
        job.started = now
        job.overhead = self._state.restart if job.evictions else 0.0
        job.segment += 1
        if job.first_start < 0:
            job.first_start = now
        self._state.running[project].add(job.index)
        self._state.held[project] += job.chips
        self._state.free -= job.chips
        self._state.changed.add(job.index)
        heapq.heappush(self._ends, (now + job.overhead + job.trace.duration - job.saved, job.index, job.segment))
        self._dirty.add(project)

    def _release(self, job: ReplayJob) -> None:
        project = job.trace.project
        self._state.running[project].remove(job.index)
        self._state.changed.add(job.index)
        self._state.held[project] -= job.chips
        self._state.free += job.chips
        self._dirty.add(project)

    def _look(self, now: float) -> None:
        """Take the samples up to `now`, before anything changes there."""
        shares = self._outcome.shares
        while self._sample and (at := len(shares) * self._sample) <= min(now, self._window.seconds):
            shares.append((at, dict(self._state.held)))

    # -- yardsticks that are integrals --------------------------------------------------------------------------

    def _account(self, job: ReplayJob, now: float, *, kept: float) -> None:
        """Count the part within the window of a segment that ends at `now`."""
        until = min(now, self._window.seconds)
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
        state = self._state
        self._integrate(project, now)
        room = self._window.entitlements[project] - state.held[project]
        found: dict[int, float] = {}
        for index in state.pending[project]:
            if room <= 0:
                break
            if self._jobs[index].chips <= room:
                room -= self._jobs[index].chips
                found[index] = owed.jobs.get(index, now)
        for index, since in owed.jobs.items():
            if index not in found and self._jobs[index].started == now and since < self._window.seconds:
                owed.longest_return = max(owed.longest_return, now - since)
        owed.jobs = found
        owed.owed = sum(self._jobs[index].chips for index in found)

    def _integrate(self, project: str, now: float) -> None:
        owed = self._outcome.owed[project]
        length = min(now, self._window.seconds) - owed.since
        if length > 0:
            owed.owed_integral += owed.owed * length
            owed.due_integral += length * (owed.owed + min(owed.held, self._window.entitlements[project]))
        owed.since = now
        owed.held = self._state.held[project]
