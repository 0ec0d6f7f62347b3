"""The scheduler's simulator, with a clock that the test moves. Every plan passes `broken_promises` and `left_out`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bastion.daemon.publish.waiting_since import WaitingSince
from quota import Policy
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict, schedule
from scheduler.simulation.simulator import NEVER, SimulatedJob, Simulator


class World(Simulator[SimulatedJob]):
    """A cluster.

    Attributes:
        evictions: How often each job was evicted, ended jobs included.
        evicted_for: Each eviction as victim and claimant, in order.
        patience: Passes in a row in which `left_out` may name a job.
        left_out: Passes in a row in which it named each job.
    """

    runs_until_gone = True

    def __init__(self, policy: Policy | None, now: float, stopping_seconds: Callable[[Job], float]) -> None:
        """`stopping_seconds`: how long a job takes from the order to stop until it is gone."""
        super().__init__(now)
        self.policy = policy
        self.evictions: dict[str, int] = {}
        self.evicted_for: list[tuple[str, str]] = []
        self.patience = 0
        self.left_out: dict[str, int] = {}
        self.waiting = WaitingSince()
        self._stopping_seconds = stopping_seconds
        self._happened: list[tuple[str, str]] = []

    def submit(self, job: Job, *, seconds: float = NEVER, checkpoint: float = 0.0) -> None:
        """Add a job, waiting or running.

        Args:
            seconds: How long its work takes.
            checkpoint: Seconds of work between two checkpoints; 0: it makes none.
        """
        simulated = SimulatedJob(job=job, order=job.name, duration=seconds, checkpoint=checkpoint)
        self.arrive(simulated)
        if job.started_at is not None:
            self._run(simulated, job.started_at, job.started_at + seconds)

    def events_until(self, now: float) -> list[tuple[str, str]]:
        """Let time pass; return who ended and who is gone, in that order, each sorted by name."""
        self.advance(now)
        happened, self._happened = sorted(self._happened), []
        return happened

    def lose(self, name: str, until: float, *, stockout: bool) -> None:
        """Lose a running job's nodes, or find none for it in the cloud; it may start again after `until`."""
        self.requeue(name, not_before=until, stockout=stockout)

    def decide(self, **circumstances: Any) -> Plan:
        """Make, check and apply one plan; `circumstances`: further fields of the snapshot."""
        self.note_checkpoints()
        jobs = tuple(
            replace(job, waiting_since=self.waiting.since.get(job.name, job.waiting_since))
            for job in self.jobs.values()
        )
        snapshot = Snapshot(policy=self.policy, jobs=jobs, **circumstances)
        plan = schedule(snapshot, self.now)
        assert not (broken := broken_promises(snapshot, plan)), broken
        self.left_out = {name: self.left_out.get(name, 0) + 1 for name in left_out(snapshot, plan)}
        assert max(self.left_out.values(), default=0) <= self.patience, (
            f"within its share and left out: {self.left_out}"
        )
        self.waiting.update(plan, self.now)
        for decision in plan.decisions:
            if decision.verdict is Verdict.START:
                self.start(decision.name, decision.tier)
            elif decision.verdict is Verdict.EVICT:
                self.evict(decision.name, decision.evicted_for)
        self.promise(self.waiting.promised)
        return plan

    def evict(self, name: str, claimant: str | None = None) -> None:
        self.evictions[name] = self.evictions.get(name, 0) + 1
        self.evicted_for.append((name, claimant or ""))
        super().evict(name, claimant)

    def stopping_seconds(self, job: Job) -> float:
        return self._stopping_seconds(job)

    def _free(self, simulated: SimulatedJob, _instant: float) -> None:
        ends = simulated.job.status is JobStatus.RUNNING
        self._happened.append(("ends" if ends else "gone", simulated.job.name))


def broken_promises(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What a plan does that no plan may do, in English; empty for every good plan."""
    decided = {decision.name: decision for decision in plan.decisions}
    if len(plan.decisions) != len(snapshot.jobs) or decided.keys() != {job.name for job in snapshot.jobs}:
        return ["not exactly one decision for every job"]
    policy = snapshot.policy
    if policy is None or snapshot.held:
        return [f"{d.name}: {d.verdict.value}" for d in plan.decisions if d.verdict in (Verdict.START, Verdict.EVICT)]
    return [
        *_overcommitted(policy, snapshot.jobs, decided),
        *_stopped_in_quota(policy, snapshot.jobs, decided),
    ]


def _overcommitted(policy: Policy, jobs: Iterable[Job], decided: Mapping[str, Decision]) -> list[str]:
    """What starts, with all that still holds something, is no more than each tier and the better ones have."""
    broken = []
    last = len(policy.tiers) - 1
    for kind in policy.resource_types:
        limit = 0
        for tier in range(last + 1):
            limit += policy.tiers[tier].get(kind, 0)
            held = started = 0
            for job in jobs:
                decision = decided[job.name]
                if min(decision.tier or 0, last) > tier:
                    continue
                if job.status is not JobStatus.PENDING:
                    held += job.charged.get(kind, 0)
                elif decision.verdict is Verdict.START:
                    started += job.demand.get(kind, 0)
            if started and held + started > limit:
                broken.append(f"over-commit: {held} + {started} {kind} on tiers 0..{tier}, which have {limit}")
    return broken


def _stopped_in_quota(policy: Policy, jobs: Iterable[Job], decided: Mapping[str, Decision]) -> list[str]:
    """Evicted in the order that suits them best, the last one's project is still above its entitlement before it.

    What the project starts in the same pass counts as held. Victims of a job of a higher priority of their own project
    do not count.
    """
    jobs = list(jobs)
    named = {job.name: job for job in jobs}
    victims: dict[str, list[Job]] = {}
    held: dict[tuple[str, str], int] = {}
    for job in jobs:
        verdict = decided[job.name].verdict
        if verdict is Verdict.EVICT:
            claimant = named[decided[job.name].evicted_for or ""]
            if claimant.project_id != job.project_id or claimant.priority >= job.priority:
                victims.setdefault(job.project_id, []).append(job)
        elif verdict in (Verdict.KEEP, Verdict.START):
            for kind, amount in (job.charged if verdict is Verdict.KEEP else job.demand).items():
                held[job.project_id, kind] = held.get((job.project_id, kind), 0) + amount
    return [
        f"stopped within its share: {', '.join(job.name for job in own)} of {project}"
        for project, own in victims.items()
        if not any(
            held.get((project, kind), 0) + amount > policy.entitlement(project, kind)
            for last in own
            for kind, amount in last.charged.items()
        )
    ]


def left_out(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Waiting jobs that compete for the pool only and that their project's entitlement covers.

    Covers: besides what the project holds, what starts, and what has capacity ordered. Jobs behind one of the same
    project that has waited for more than 24 hours do not count.
    """
    policy = snapshot.policy
    if policy is None:
        return []
    decided = {decision.name: decision for decision in plan.decisions}
    committed: dict[tuple[str, str], int] = {}
    waiting = []
    for job in snapshot.jobs:
        decision = decided[job.name]
        amounts: Mapping[str, int] = {}
        if decision.verdict is Verdict.KEEP:
            amounts = job.charged
        elif decision.verdict is Verdict.START or _has_capacity_ordered(decision):
            amounts = job.demand
        elif decision.verdict is Verdict.WAIT and _competes(decision):
            waiting.append(job)
        for kind, amount in amounts.items():
            place = (job.project_id, kind)
            committed[place] = committed.get(place, 0) + amount
    return [
        job.name
        for job in waiting
        if not policy.rules(job.project_id).fifo
        and not job.on_bastion
        and not _waits_behind_overdue(job, decided[job.name], waiting)
        and all(
            committed.get((job.project_id, kind), 0) + amount <= policy.entitlement(job.project_id, kind)
            for kind, amount in job.demand.items()
        )
    ]


def _waits_behind_overdue(job: Job, decision: Decision, waiting: Iterable[Job]) -> bool:
    first = decision.reason.holders[0] if decision.reason and decision.reason.holders else ""
    return "waited for more than 24 hours" in (decision.reason.message if decision.reason else "") and any(
        other.name == first and other.project_id == job.project_id and other.queued_at <= job.queued_at
        for other in waiting
    )


def _has_capacity_ordered(decision: Decision) -> bool:
    """Whether the job waits only for jobs that are being stopped."""
    reason = decision.reason
    return reason is not None and (
        reason.code is ReasonCode.WAITING_FOR_PREEMPTED or "is being freed by" in reason.message
    )


def _competes(decision: Decision) -> bool:
    """Whether it waits only for capacity."""
    reason = decision.reason
    if reason is None or {ReasonCode.BACKOFF, ReasonCode.STOCKOUT} & {*reason.also}:
        return False
    return reason.code in (
        ReasonCode.WAITING_FOR_PROJECT_SHARE,
        ReasonCode.WAITING_FOR_POOL,
        ReasonCode.BEHIND_HIGHER_PRIORITY,
    )
