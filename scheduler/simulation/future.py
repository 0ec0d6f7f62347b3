"""A snapshot carried forward in time: the scheduler decides, jobs start, stop and end, and others arrive.

Durations are given. Nothing is canceled, no node is lost, the pool stays. An evicted job keeps its capacity for its
project's grace period and until its nodes are gone. Then it waits again and repeats unsaved work.

Invariant: between two decisions jobs only end and arrive. The same arguments give the same future.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.decide.capacity import amounts_of
from scheduler.decide.cooldown import cooldown_until
from scheduler.decide.deadline import DEADLINE_SECONDS
from scheduler.decide.lending import RESTART_SECONDS, RecentHoldings
from scheduler.model import Job, JobStatus, Plan, Reason, RecentUnits, Snapshot, Verdict
from scheduler.scheduling import Scheduler
from scheduler.usage_history import UsageHistory

NEVER = math.inf
# After the grace period, until an evicted job's nodes are gone.
_DELETION_SECONDS = 30.0
_MOMENT_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job held `charged` from `begin` to `end`, the deletion of its nodes included."""

    job: Job
    begin: float
    end: float


class Future:
    """One future of a snapshot. Alternate `decide` and `advance`.

    Attributes:
        now: Its current instant, in seconds since the epoch.
        decisions: Number of decisions so far.
        started: First start of each watched job, by name.
        refused: Reasons of jobs that never start (again), by name; they no longer take part.
        evicted: Each eviction: name and instant.
        holdings: Of attempts that ended.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        now: float,
        left: Mapping[str, float],
        *,
        watched: Collection[str],
        arrivals: Iterable[Job] = (),
        usage: UsageHistory | None = None,
    ) -> None:
        """Start from the snapshot.

        Args:
            left: Seconds that each job runs once it runs, for running jobs from now; may be infinite.
            arrivals: Jobs that arrive at their `queued_at`; names differ from all others.
            usage: Continues to account usage; None: usage stays that of the snapshot.
        """
        self.now = self._began = now
        self._snapshot = snapshot
        self._jobs = {job.name: job for job in snapshot.jobs}
        self._left = dict(left)
        self._ends: list[tuple[float, str]] = []
        self._arrivals = deque(sorted(arrivals, key=lambda job: (job.queued_at, job.name)))
        self._watched = watched
        # Watched jobs that have not arrived.
        self._unseen = set(watched)
        self._scheduler = Scheduler()
        self._promised = frozenset(job.name for job in snapshot.jobs if job.promised)
        self._recent = RecentHoldings(snapshot.held_recently)
        self._usage = usage
        self._policy = snapshot.policy or Policy(tiers=(), weights={}, members={})
        self.decisions = 0
        self.started: dict[str, float] = {}
        self.refused: dict[str, Reason] = {}
        self.evicted: list[tuple[str, float]] = []
        self.holdings: list[Holding] = []
        for job in snapshot.jobs:
            if job.status is JobStatus.RUNNING:
                self._end(job.name, now + self._left[job.name])
            elif job.status is JobStatus.STOPPING:
                self._end(job.name, now + self._stopping_seconds(job))
            elif job.not_before is not None and job.not_before > now:
                self._end("", job.not_before)
            elif (cooldown_end := cooldown_until(job)) is not None and cooldown_end > now:
                self._end("", cooldown_end)
        for resource_types in snapshot.held_recently.values():
            for steps in resource_types.values():
                for until, _ in steps:
                    self._end("", until + _MOMENT_SECONDS)

    @property
    def jobs(self) -> Collection[Job]:
        return self._jobs.values()

    @property
    def all_started(self) -> bool:
        return len(self.started) == len(self._watched)

    def decide(self) -> None:
        """Make one plan and apply it. A second `decide` at the same instant changes nothing."""
        self.decisions += 1
        held = self._note_holdings(self.now)
        used = self._snapshot.user_usage
        if self._usage is not None:
            used = self._usage.note(self._jobs.values(), self.now, self._policy)
        snapshot = replace(self._snapshot, jobs=tuple(self._jobs.values()), held_recently=held, user_usage=used)
        plan = self._scheduler.schedule(snapshot, self.now)
        for decision in plan.acting:
            job = self._jobs[decision.name]
            if decision.verdict is Verdict.START:
                self._start(job, decision.tier)
            elif decision.verdict is Verdict.EVICT:
                self._evict(job, decision.evicted_for)
        if plan.impossible:
            self._refuse(plan)
        for name in plan.promised ^ self._promised:
            waiting = self._jobs.get(name)
            if waiting is not None and waiting.status is JobStatus.PENDING:
                self._jobs[name] = replace(waiting, promised=name in plan.promised)
        self._promised = plan.promised
        self._watch_deadlines()

    def advance(self, earliest: float, until: float) -> bool:
        """Move to the next change, at least to `earliest`; False: it is after `until`, or there is none."""
        soonest = min(
            self._ends[0][0] if self._ends else NEVER, self._arrivals[0].queued_at if self._arrivals else NEVER
        )
        now = max(soonest, earliest)
        if now > until or soonest == NEVER:
            return False
        self.now = now
        # The daemon's last tick saw these jobs just before they ended.
        self._note_holdings(now - _MOMENT_SECONDS)
        if self._usage is not None:
            self._usage.note(self._jobs.values(), now, self._policy)
        while self._ends and self._ends[0][0] <= now:
            instant, name = heapq.heappop(self._ends)
            self._over(name, instant)
        while self._arrivals and self._arrivals[0].queued_at <= now:
            job = self._arrivals.popleft()
            self._jobs[job.name] = job
        return True

    def held_until(self, end: float) -> list[Holding]:
        begun = (
            Holding(job=job, begin=self.now if job.started_at is None else job.started_at, end=end)
            for job in self._jobs.values()
            if job.status is not JobStatus.PENDING
        )
        return [*self.holdings, *begun]

    def _note_holdings(self, now: float) -> Mapping[str, Mapping[str, RecentUnits]]:
        return self._recent.note(self._jobs.values(), now, self._policy, self._snapshot.restart_seconds)

    def _end(self, name: str, instant: float) -> None:
        if instant < NEVER:
            heapq.heappush(self._ends, (instant, name))

    def _refuse(self, plan: Plan) -> None:
        for decision in plan.waiting:
            if decision.reason is not None and decision.name in plan.impossible:
                self.refused[decision.name] = decision.reason
                del self._jobs[decision.name]

    def _watch_deadlines(self) -> None:
        """Add the deadlines of watched waiting jobs, at which time alone changes the scheduler's answer."""
        for name in [name for name in self._unseen if name in self._jobs]:
            self._unseen.remove(name)
            job = self._jobs[name]
            if job.status is JobStatus.PENDING and job.queued_at + DEADLINE_SECONDS > self.now:
                self._end("", job.queued_at + DEADLINE_SECONDS)

    def _start(self, job: Job, tier: int | None) -> None:
        self._jobs[job.name] = replace(
            job,
            status=JobStatus.RUNNING,
            tier=tier,
            charged=job.demand,
            started_at=self.now,
            checkpointed_at=None,
            promised=False,
        )
        self._end(job.name, self.now + self._left[job.name])
        if job.name in self._watched:
            self.started.setdefault(job.name, self.now)

    def _evict(self, job: Job, claimant: str | None) -> None:
        started = self.now if job.started_at is None else job.started_at
        ran = max(0.0, self.now - started)
        # It loses its work in this future and since its last known checkpoint.
        self._left[job.name] += max(0.0, self._began - max(started, job.checkpointed_at or started))
        self._jobs[job.name] = replace(
            job,
            status=JobStatus.STOPPING,
            evicted_for=claimant or "",
            evictions=job.evictions + 1,
            futile_evictions=0 if job.checkpointed_at is not None else job.futile_evictions + 1,
            evicted_at=self.now,
            evicted_seconds=job.evicted_seconds + ran,
        )
        self.evicted.append((job.name, self.now))
        self._ends = [entry for entry in self._ends if entry[1] != job.name]
        heapq.heapify(self._ends)
        self._end(job.name, self.now + self._stopping_seconds(job))

    def _over(self, name: str, instant: float) -> None:
        job = self._jobs.get(name)
        if job is None:
            return
        self.holdings.append(Holding(job=job, begin=instant if job.started_at is None else job.started_at, end=instant))
        # What the project gave back is lent to others only after this time.
        kept = self._policy.rules(job.project_id).keep_idle_seconds
        if kept is None:
            costs = (
                self._snapshot.restart_seconds.get(resource, RESTART_SECONDS) for resource, _ in amounts_of(job.demand)
            )
            kept = min(max(costs, default=0.0), RESTART_SECONDS)
        if kept:
            self._end("", self.now + kept + _MOMENT_SECONDS)
        if job.status is JobStatus.STOPPING and job.evicted_for is not None:
            # An evicted job waits again.
            if (cooldown_end := cooldown_until(job)) is not None:
                self._end("", cooldown_end)
            self._jobs[name] = replace(
                job,
                status=JobStatus.PENDING,
                tier=None,
                charged={},
                started_at=None,
                checkpointed_at=None,
                evicted_for=None,
                waiting_since=self.now,
            )
        else:
            del self._jobs[name]

    def _stopping_seconds(self, job: Job) -> float:
        return self._policy.rules(job.project_id).grace_seconds + _DELETION_SECONDS
