"""The production scheduler as a replay policy.

Evictions are immediate in a replay, while a plan evicts first and starts the claimant in a later pass. So after
evictions a tick asks for a second plan and applies only its starts. A plan's starts on free capacity come first, since
it chooses victims with these running. A victim waits from the next tick on, as in the daemon.

A job's value is rebuilt only when it changes, so that the scheduler recognizes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from quota import Policy
from scheduler import Job, JobStatus, Plan, Scheduler, Snapshot, Verdict
from scheduler.decide.lending import RecentHoldings
from scheduler.model import RecentUnits
from scheduler.simulation.replay.engine import ReplayJob, Round, State
from scheduler.simulation.replay.trace import TraceError, Window

_JOB_FIELDS = frozenset(field.name for field in fields(Job))


def only_type(policy: Policy) -> str:
    """The single resource type, for a trace's chips; raises TraceError if the quota file has none, or several."""
    resource_types = policy.resource_types
    if len(resource_types) != 1:
        raise TraceError(
            f"a trace has chips of one type, but the quota file has {len(resource_types)} resource types"
            f"{': ' if resource_types else ''}{', '.join(resource_types)}; use a quota file with exactly one"
        )
    return resource_types[0]


def shares_of(policy: Policy, resource_type: str) -> dict[str, float]:
    """Each project's fraction of the pool, for projects with a weight for the type."""
    weights = {
        project: resource_types[resource_type]
        for project, resource_types in policy.weights.items()
        if resource_type in resource_types
    }
    whole = sum(weights.values())
    return {project: weight / whole if whole else 0.0 for project, weight in weights.items()}


def scaled(policy: Policy, resource_type: str, window: Window) -> tuple[Policy, Window]:
    """The same quotas on the window's pool, as one tier, and the window with the entitlements they give."""
    sized = replace(policy, tiers=({resource_type: window.pool},))
    return sized, replace(
        window, entitlements={project: sized.entitlement(project, resource_type) for project in window.shares}
    )


class Production:
    """`schedule()` as a replay policy; `time_dependent` while any job waits, since reservations, backoffs and
    deadlines pass.
    """

    def __init__(
        self, policy: Policy, resource_type: str, plan: Callable[[Snapshot, float], Plan] | None = None
    ) -> None:
        """`policy` is already scaled to the window's pool (`scaled`); membership is not checked."""
        self.time_dependent = False
        self._policy = policy
        self._resource_type = resource_type
        self._plan = plan or Scheduler().schedule
        self._jobs: dict[int, Job] = {}
        self._index: dict[str, int] = {}
        self._promised: set[int] = set()
        self._amounts: dict[int, Mapping[str, int]] = {}
        # When each running job makes its next checkpoint: instant, index, segment.
        self._checkpoints: list[tuple[float, int, int]] = []
        self._checkpointed_at: dict[int, float] = {}
        self._recent = RecentHoldings()
        self._held_recently: Mapping[str, Mapping[str, RecentUnits]] = {}

    def decide(self, state: State, now: float, /) -> Sequence[Round]:
        for index in sorted(state.changed):
            self._refresh(state, index)
        self._make_checkpoints(state, now)
        self._held_recently = self._recent.note(self._jobs.values(), now, self._policy)
        plan = self._ask(now)
        started = self._start(plan, now)
        stopped = self._stop(plan)
        self._note_promises(plan.promised)
        claimants: list[int] = []
        if stopped:
            # Only claimants of the first plan, and jobs that fit besides.
            claimants = self._start(self._ask(now), now)
            self._note_promises(plan.promised - {state.jobs[index].trace.name for index in claimants})
        self.time_dependent = bool(stopped) or any(job.status is JobStatus.PENDING for job in self._jobs.values())
        return Round((), started), Round(stopped, claimants)

    def _ask(self, now: float) -> Plan:
        snapshot = Snapshot(
            policy=self._policy,
            jobs=(*self._jobs.values(),),
            check_membership=False,
            held_recently=self._held_recently,
        )
        return self._plan(snapshot, now)

    def _start(self, plan: Plan, now: float) -> list[int]:
        started = [self._index[d.name] for d in plan.acting if d.verdict is Verdict.START]
        for index in started:
            job = self._jobs[index]
            self._jobs[index] = replace(
                job, status=JobStatus.RUNNING, tier=0, charged=job.demand, started_at=now, promised=False
            )
        return started

    def _stop(self, plan: Plan) -> list[int]:
        """Apply the plan's evictions: victims are gone until the next tick."""
        stopped = [self._index[name] for name in plan.evicted]
        for index in stopped:
            del self._jobs[index]
        return stopped

    def _note_promises(self, names: frozenset[str]) -> None:
        promised = {self._index[name] for name in names}
        for index in promised ^ self._promised:
            job = self._jobs.get(index)
            if job is not None and job.status is JobStatus.PENDING:
                self._jobs[index] = replace(job, promised=index in promised)
        self._promised = promised

    def _refresh(self, state: State, index: int) -> None:
        job = state.jobs[index]
        if job.end >= 0:
            del self._jobs[index]
            return
        if job.running and state.checkpoint:
            first = job.started + job.overhead + state.checkpoint
            heapq.heappush(self._checkpoints, (first, index, job.segment))
        self._index[job.trace.name] = index
        self._jobs[index] = self._job(job)

    def _make_checkpoints(self, state: State, now: float) -> None:
        while self._checkpoints and self._checkpoints[0][0] <= now:
            at, index, segment = heapq.heappop(self._checkpoints)
            job = state.jobs[index]
            if job.running and job.segment == segment:
                heapq.heappush(self._checkpoints, (at + state.checkpoint, index, segment))
                self._checkpointed_at[index] = at
                self._jobs[index] = self._job(job)

    def _job(self, job: ReplayJob) -> Job:
        amounts = self._amounts.setdefault(job.chips, {self._resource_type: job.chips})
        history: dict[str, Any] = {
            "checkpointed_at": self._checkpointed_at.get(job.index),
            "evictions": job.evictions,
            "futile_evictions": job.futile,
            "evicted_at": job.evicted_at if job.evictions else None,
            "evicted_seconds": job.evicted_seconds,
        }
        value = Job(
            name=job.trace.name,
            project_id=job.trace.project,
            user_id=job.trace.user,
            queued_at=job.trace.submit,
            demand=amounts,
            waiting_since=job.evicted_at if job.evictions else None,
            promised=job.index in self._promised and not job.running,
            **{name: value for name, value in history.items() if name in _JOB_FIELDS},
        )
        if not job.running:
            return value
        return replace(value, status=JobStatus.RUNNING, tier=0, charged=amounts, started_at=job.started)
