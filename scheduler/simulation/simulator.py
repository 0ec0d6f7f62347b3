"""The simulator under forecasts, what-ifs, replays and scenario tests: jobs arrive, start, stop and end.

Invariant: between decisions jobs only arrive, end and finish stopping. Each change becomes visible at the next
`advance`.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from scheduler.model import Job, JobStatus, Plan

NEVER = math.inf


@dataclass(slots=True, kw_only=True)
class SimulatedJob:
    """A job and its progress.

    Attributes:
        job: As the scheduler sees it now.
        order: Orders simultaneous events; unique.
        duration: Seconds of work; may be infinite.
        checkpoint: Seconds of progress between checkpoints; 0: none.
        saved: Checkpointed progress, in seconds of work.
        started: Start of the current segment; negative while it does not run.
        overhead: Seconds at the start of the segment without progress.
        segment: Increases with each start and stop; events of an earlier one are void.
        end: Negative before.
    """

    job: Job
    order: Any
    duration: float
    checkpoint: float = 0.0
    saved: float = 0.0
    started: float = -1.0
    overhead: float = 0.0
    segment: int = 0
    end: float = -1.0

    @property
    def running(self) -> bool:
        return self.started >= 0

    def progress(self, now: float) -> float:
        """Seconds of work done by a running job, checkpointed or not."""
        return min(self.duration, self.saved + max(0.0, now - self.started - self.overhead))

    def checkpointed(self, now: float) -> float:
        """The part of a running job's progress that is in a checkpoint."""
        if not self.checkpoint:
            return self.saved
        return max(self.saved, self.progress(now) // self.checkpoint * self.checkpoint)


SimulatedT = TypeVar("SimulatedT", bound=SimulatedJob)


class Simulator(Generic[SimulatedT]):
    """Jobs and a clock.

    Attributes:
        jobs: All that have arrived and not ended, by name. A job that changes is a new value.
        restart_overhead: Seconds that an evicted job loses when it starts again.
        runs_until_gone: An evicted job works until it is gone, and its eviction counts then.
    """

    restart_overhead = 0.0
    runs_until_gone = False

    def __init__(self, now: float, arrivals: Iterable[SimulatedT] = ()) -> None:
        """`arrivals` arrive at their `queued_at`, which ascend; names are unique."""
        self.now = now
        self.jobs: dict[str, Job] = {}
        self._simulated: dict[str, SimulatedT] = {}
        self._arrivals = deque(arrivals)
        # Instant, order and segment of each end; no job: only a reason to decide.
        self._events: list[tuple[float, Any, int, SimulatedT | None]] = []
        self._checkpoints: list[tuple[float, Any, int, SimulatedT]] = []
        self._promised: frozenset[str] = frozenset()
        # Names of jobs that have ended, and by name those that await its end.
        self._ended: set[str] = set()
        self._awaiting: dict[str, list[str]] = {}

    # -- time ---------------------------------------------------------------------------------------------------

    def next_change(self) -> float:
        """The instant of the next event or arrival; `NEVER` if there is none."""
        events = self._events
        while events and (simulated := events[0][3]) is not None and simulated.segment != events[0][2]:
            heapq.heappop(events)
        return min(events[0][0] if events else NEVER, self._arrivals[0].job.queued_at if self._arrivals else NEVER)

    def advance(self, now: float) -> None:
        """Move to `now`: jobs end, finish stopping, and then arrive."""
        self.now = now
        while self._events and self._events[0][0] <= now:
            instant, _, segment, simulated = heapq.heappop(self._events)
            if simulated is not None and simulated.segment == segment:
                self._over(simulated, instant)
        while self._arrivals and self._arrivals[0].job.queued_at <= now:
            self.arrive(self._arrivals.popleft())

    def wake(self, instant: float) -> None:
        """Make `instant` a change."""
        if instant < NEVER:
            heapq.heappush(self._events, (instant, "", 0, None))

    # -- what happens to jobs -----------------------------------------------------------------------------------

    def arrive(self, simulated: SimulatedT) -> None:
        """Add a job. It waits for those of its `after` that have not ended in this simulation."""
        job = simulated.job
        if job.after:
            left = tuple(name for name in job.after if name not in self._ended)
            for name in left:
                self._awaiting.setdefault(name, []).append(job.name)
            simulated.job = job = replace(job, after=left)
        self._simulated[job.name] = simulated
        self.jobs[job.name] = job

    def start(self, name: str, tier: int | None = 0) -> None:
        simulated = self._simulated[name]
        job = simulated.job
        simulated.overhead = self.restart_overhead if job.evictions else 0.0
        self._put(
            simulated,
            replace(
                job,
                status=JobStatus.RUNNING,
                tier=tier,
                charged=job.demand,
                started_at=self.now,
                checkpointed_at=None,
                promised=False,
                not_before=None,
                stockout=False,
            ),
        )
        self._run(simulated, self.now, self.now + simulated.overhead + simulated.duration - simulated.saved)

    def evict(self, name: str, claimant: str | None = None) -> None:
        """Evict a running job; it waits again after `stopping_seconds`."""
        simulated = self._simulated[name]
        changes = {} if self.runs_until_gone else self._eviction(simulated)
        seconds = self.stopping_seconds(simulated.job)
        if seconds or self.runs_until_gone:
            stopping = replace(simulated.job, status=JobStatus.STOPPING, evicted_for=claimant or "", **changes)
            self._put(simulated, stopping)
            self._end_at(simulated, self.now + seconds)
        else:
            self._free(simulated, self.now)
            self.requeue(name, **changes)

    def cancel(self, name: str) -> None:
        """End a job for good."""
        simulated = self._simulated[name]
        job = simulated.job
        if job.status is JobStatus.PENDING:
            del self.jobs[name]
            self._release(name)
            return
        self._put(simulated, replace(job, status=JobStatus.STOPPING, evicted_for=None))
        if job.status is JobStatus.RUNNING:
            self._end_at(simulated, self.now + self.stopping_seconds(job))

    def requeue(self, name: str, **changes: Any) -> None:
        """Let a job wait again, with `changes`."""
        simulated = self._simulated[name]
        simulated.started = -1.0
        simulated.segment += 1
        waiting = replace(
            simulated.job,
            status=JobStatus.PENDING,
            tier=None,
            charged={},
            started_at=None,
            checkpointed_at=None,
            evicted_for=None,
            waiting_since=self.now,
            **changes,
        )
        self._put(simulated, waiting)

    def refuse(self, plan: Plan) -> None:
        """Called with a plan under which some jobs can never start."""

    def promise(self, names: frozenset[str]) -> None:
        for name in names ^ self._promised:
            job = self.jobs.get(name)
            if job is not None and job.status is JobStatus.PENDING:
                self._put(self._simulated[name], replace(job, promised=name in names))
        self._promised = names

    def note_checkpoints(self) -> None:
        """Tell the scheduler of the checkpoints made by now."""
        while self._checkpoints and self._checkpoints[0][0] <= self.now:
            at, order, segment, simulated = heapq.heappop(self._checkpoints)
            if simulated.segment == segment:
                heapq.heappush(self._checkpoints, (at + simulated.checkpoint, order, segment, simulated))
                self._put(simulated, replace(simulated.job, checkpointed_at=at))

    # -- what subclasses say and count --------------------------------------------------------------------------

    def stopping_seconds(self, _job: Job) -> float:
        """Seconds from an eviction or cancellation until the job is gone."""
        return 0.0

    def _eviction(self, simulated: SimulatedT) -> dict[str, Any]:
        """Save the progress of an evicted job; return the changes to its value."""
        job, now = simulated.job, self.now
        kept = simulated.checkpointed(now)
        saved = kept > simulated.saved or job.checkpointed_at is not None
        simulated.saved = kept
        return {
            "evictions": job.evictions + 1,
            "futile_evictions": 0 if saved else job.futile_evictions + 1,
            "evicted_at": now,
            "evicted_seconds": job.evicted_seconds
            + max(0.0, now - (now if job.started_at is None else job.started_at)),
        }

    def _free(self, simulated: SimulatedT, instant: float) -> None:
        """Called before a job that gave its capacity back at `instant` waits again or leaves."""

    def _end(self, simulated: SimulatedT, instant: float) -> None:
        self._free(simulated, instant)
        simulated.saved, simulated.started, simulated.end = simulated.duration, -1.0, instant
        simulated.segment += 1
        del self.jobs[simulated.job.name]
        self._release(simulated.job.name)

    def _release(self, ended: str) -> None:
        """Let jobs go on that awaited this one."""
        self._ended.add(ended)
        for name in self._awaiting.pop(ended, ()):
            if name in self.jobs:
                simulated = self._simulated[name]
                left = tuple(other for other in simulated.job.after if other != ended)
                self._put(simulated, replace(simulated.job, after=left))

    # -- segments -----------------------------------------------------------------------------------------------

    def _over(self, simulated: SimulatedT, instant: float) -> None:
        job = simulated.job
        if job.status is JobStatus.STOPPING and job.evicted_for is not None:
            self._free(simulated, instant)
            self.requeue(job.name, **(self._eviction(simulated) if self.runs_until_gone else {}))
        else:
            self._end(simulated, instant)

    def _put(self, simulated: SimulatedT, job: Job) -> None:
        simulated.job = self.jobs[job.name] = job

    def _run(self, simulated: SimulatedT, started: float, end: float) -> None:
        simulated.started = started
        self._end_at(simulated, end)
        if simulated.checkpoint:
            first = started + simulated.overhead + simulated.checkpoint
            heapq.heappush(self._checkpoints, (first, simulated.order, simulated.segment, simulated))

    def _end_at(self, simulated: SimulatedT, instant: float) -> None:
        simulated.segment += 1
        if instant < NEVER:
            heapq.heappush(self._events, (instant, simulated.order, simulated.segment, simulated))
