"""A snapshot carried forward in time by the production scheduler.

Durations are given. An evicted job keeps its capacity for its project's grace period and until its nodes are gone. Then
it waits again and repeats unsaved work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.decide.capacity import amounts_of
from scheduler.decide.cooldown import cooldown_until
from scheduler.decide.deadline import DEADLINE_SECONDS
from scheduler.decide.lending import RESTART_SECONDS
from scheduler.model import Job, JobStatus, Plan, Reason, Snapshot
from scheduler.simulation.production import Production
from scheduler.simulation.simulator import NEVER, SimulatedJob, Simulator
from scheduler.usage_history import UsageHistory

# After the grace period, until an evicted job's nodes are gone.
_DELETION_SECONDS = 30.0
_MOMENT_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job held `charged` from `begin` to `end`, the deletion of its nodes included."""

    job: Job
    begin: float
    end: float


class Future(Simulator[SimulatedJob]):
    """One future of a snapshot. Alternate `decide` and `advance_to_change`.

    Attributes:
        started: First start of each watched job, by name.
        refused: By name, why a job never starts (again); it no longer takes part.
        evicted: Name and instant of each eviction.
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
            arrivals: Jobs that arrive at their `queued_at`.
            usage: See `Production`.
        """
        arriving = sorted(arrivals, key=lambda job: (job.queued_at, job.name))
        super().__init__(now, [SimulatedJob(job=job, order=job.name, duration=left[job.name]) for job in arriving])
        self._scheduler = Production(snapshot, usage=usage)
        self._restart_seconds = snapshot.restart_seconds
        self._watched = watched
        # Watched jobs that have not arrived.
        self._unseen = set(watched)
        self._promised = frozenset(job.name for job in snapshot.jobs if job.promised)
        self.decisions = 0
        self.started: dict[str, float] = {}
        self.refused: dict[str, Reason] = {}
        self.evicted: list[tuple[str, float]] = []
        self.holdings: list[Holding] = []
        for job in snapshot.jobs:
            self._take_over(job, left.get(job.name, NEVER))
        for resource_types in snapshot.held_recently.values():
            for steps in resource_types.values():
                for until, _ in steps:
                    self.wake(until + _MOMENT_SECONDS)

    @property
    def all_started(self) -> bool:
        return len(self.started) == len(self._watched)

    def decide(self) -> None:
        """Make one plan and apply it. A second `decide` at the same instant changes nothing."""
        self.decisions += 1
        self._scheduler.decide(self)
        self._watch_deadlines()

    def advance_to_change(self, earliest: float, until: float) -> bool:
        """Move to the next change, at least to `earliest`; False: it is after `until`, or there is none."""
        soonest = self.next_change()
        now = max(soonest, earliest)
        if now > until or soonest == NEVER:
            return False
        # The daemon's last tick saw these jobs just before they ended.
        self._scheduler.note_holdings(self, now - _MOMENT_SECONDS)
        self.now = now
        self._scheduler.note_usage(self)
        self.advance(now)
        return True

    def held_until(self, end: float) -> list[Holding]:
        begun = (
            Holding(job=job, begin=self.now if job.started_at is None else job.started_at, end=end)
            for job in self.jobs.values()
            if job.status is not JobStatus.PENDING
        )
        return [*self.holdings, *begun]

    def start(self, name: str, tier: int | None = 0) -> None:
        super().start(name, tier)
        if name in self._watched:
            self.started.setdefault(name, self.now)

    def evict(self, name: str, claimant: str | None = None) -> None:
        super().evict(name, claimant)
        self.evicted.append((name, self.now))

    def refuse(self, plan: Plan) -> None:
        for decision in plan.waiting:
            if decision.reason is not None and decision.name in plan.impossible:
                self.refused[decision.name] = decision.reason
                del self.jobs[decision.name]

    def stopping_seconds(self, job: Job) -> float:
        return self._scheduler.policy.rules(job.project_id).grace_seconds + _DELETION_SECONDS

    def _take_over(self, job: Job, left: float) -> None:
        simulated = SimulatedJob(job=job, order=job.name, duration=left)
        self.arrive(simulated)
        if job.status is JobStatus.RUNNING:
            # An eviction loses its work in this future and since its last known checkpoint.
            started = self.now if job.started_at is None else job.started_at
            simulated.duration += max(0.0, self.now - max(started, job.checkpointed_at or started))
            self._run(simulated, self.now, self.now + left)
        elif job.status is JobStatus.STOPPING:
            self._end_at(simulated, self.now + self.stopping_seconds(job))
        elif job.not_before is not None and job.not_before > self.now:
            self.wake(job.not_before)
        elif (cooldown_end := cooldown_until(job)) is not None and cooldown_end > self.now:
            self.wake(cooldown_end)

    def _watch_deadlines(self) -> None:
        """Add the deadlines of watched waiting jobs, at which time alone changes the scheduler's answer."""
        for name in [name for name in self._unseen if name in self.jobs]:
            self._unseen.remove(name)
            job = self.jobs[name]
            if job.status is JobStatus.PENDING and job.queued_at + DEADLINE_SECONDS > self.now:
                self.wake(job.queued_at + DEADLINE_SECONDS)

    def requeue(self, name: str, **changes: Any) -> None:
        super().requeue(name, **changes)
        if (cooldown_end := cooldown_until(self.jobs[name])) is not None:
            self.wake(cooldown_end)

    def _free(self, simulated: SimulatedJob, instant: float) -> None:
        job = simulated.job
        self.holdings.append(Holding(job=job, begin=instant if job.started_at is None else job.started_at, end=instant))
        # What the project gave back is lent to others only after this time.
        kept = self._scheduler.policy.rules(job.project_id).keep_idle_seconds
        if kept is None:
            costs = (self._restart_seconds.get(resource, RESTART_SECONDS) for resource, _ in amounts_of(job.demand))
            kept = min(max(costs, default=0.0), RESTART_SECONDS)
        if kept:
            self.wake(self.now + kept + _MOMENT_SECONDS)
