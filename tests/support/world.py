"""A tiny world that carries plans out: no nodes, no bucket, only jobs and a clock that the test moves.

What the daemon and the cloud do to a job as far as the scheduler sees it: a started job holds its demand; an evicted
one holds it until it is gone and then waits again, with what its evictions cost; an ended or cancelled one leaves.

Invariant: every plan is checked against what no plan may do (`broken_promises`) before it is carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bastion.daemon.publish.waiting_since import WaitingSince
from quota import Policy
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict, schedule


@dataclass(slots=True)
class World:
    """Every job that is not over, and what is on its way.

    Attributes:
        stopping_seconds: How long a job takes from the order to stop until it is gone.
        gone_at: When each stopping job is gone.
        left: Seconds of work that each job still has to do; absent: it is endless.
        checkpoint: Seconds of work between two checkpoints of each job; absent: it makes none.
        evictions: How often each job was evicted, those included that are over.
        evicted_for: Each eviction as victim and claimant, in order.
        patience: In how many passes in a row a job within its project's share may be left out, neither running nor with
            room ordered for it.
        left_out: In how many passes in a row each waiting job was.
    """

    policy: Policy | None
    now: float
    stopping_seconds: Callable[[Job], float]
    jobs: dict[str, Job] = field(default_factory=dict)
    gone_at: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    checkpoint: dict[str, float] = field(default_factory=dict)
    evictions: dict[str, int] = field(default_factory=dict)
    evicted_for: list[tuple[str, str]] = field(default_factory=list)
    patience: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    waiting: WaitingSince = field(default_factory=WaitingSince)

    def arrive(self, job: Job) -> None:
        self.jobs[job.name] = job

    def advance(self, now: float) -> list[tuple[str, str]]:
        """Lets time pass; returns who ended and who is gone, in that order, each sorted by name."""
        self.now = now
        ended = [name for name in sorted(self.jobs) if self._ends_at(name) <= now]
        for name in ended:
            del self.jobs[name]
        gone = [name for name in sorted(self.gone_at) if self.gone_at[name] <= now]
        for name in gone:
            del self.gone_at[name]
            self._gone(name)
        return [("ends", name) for name in ended] + [("gone", name) for name in gone]

    def stop(self, name: str) -> None:
        """Its owner cancels a job."""
        job = self.jobs[name]
        if job.status is JobStatus.PENDING:
            del self.jobs[name]
            return
        self.jobs[name] = replace(job, status=JobStatus.STOPPING, evicted_for=None)
        self.gone_at.setdefault(name, self.now + self.stopping_seconds(job))

    def lose(self, name: str, until: float, *, stockout: bool) -> None:
        """A running job's nodes are lost, or the cloud has none for it; it is tried again after `until`."""
        job = self._back_in_the_queue(self.jobs[name])
        self.jobs[name] = replace(job, not_before=until, stockout=stockout)

    def decide(self, **circumstances: Any) -> Plan:
        """One pass, checked and carried out.

        Args:
            circumstances: Further fields of the snapshot.
        """
        jobs = tuple(
            replace(
                job,
                waiting_since=self.waiting.since.get(job.name, job.waiting_since),
                promised=job.name in self.waiting.promised,
                checkpointed_at=self._checkpointed_at(job),
            )
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
                self._start(decision)
            elif decision.verdict is Verdict.EVICT:
                self._evict(decision)
        return plan

    def _start(self, decision: Decision) -> None:
        job = self.jobs[decision.name]
        self.jobs[job.name] = replace(
            job,
            status=JobStatus.RUNNING,
            tier=decision.tier,
            charged=job.demand,
            started_at=self.now,
            not_before=None,
            stockout=False,
        )

    def _evict(self, decision: Decision) -> None:
        job = self.jobs[decision.name]
        self.jobs[job.name] = replace(job, status=JobStatus.STOPPING, evicted_for=decision.evicted_for)
        self.gone_at[job.name] = self.now + self.stopping_seconds(job)
        self.evictions[job.name] = self.evictions.get(job.name, 0) + 1
        self.evicted_for.append((job.name, decision.evicted_for or ""))

    def _gone(self, name: str) -> None:
        job = self.jobs.pop(name)
        if job.evicted_for is None:
            return
        started = job.started_at or 0.0
        saved = self._checkpointed_at(job)
        if name in self.left:
            self.left[name] -= (saved or started) - started
        self.jobs[name] = replace(
            self._back_in_the_queue(job),
            evictions=job.evictions + 1,
            futile_evictions=0 if saved is not None else job.futile_evictions + 1,
            evicted_at=self.now,
            evicted_seconds=job.evicted_seconds + self.now - started,
        )

    def _back_in_the_queue(self, job: Job) -> Job:
        return replace(
            job,
            status=JobStatus.PENDING,
            tier=None,
            charged={},
            started_at=None,
            evicted_for=None,
            waiting_since=self.now,
        )

    def _ends_at(self, name: str) -> float:
        """When a running job has done its work."""
        job = self.jobs[name]
        if job.status is not JobStatus.RUNNING or name not in self.left:
            return math.inf
        return (job.started_at or 0.0) + self.left[name]

    def _checkpointed_at(self, job: Job) -> float | None:
        interval = self.checkpoint.get(job.name)
        if interval is None or job.started_at is None:
            return None
        saved = (self.now - job.started_at) // interval * interval
        return job.started_at + saved if saved else None


def broken_promises(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What a plan does that none may do, in words; empty for every good plan."""
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

    What the project starts in the same pass counts as held. Whoever goes for a job of a higher priority of its own
    project does not count.
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
    """Waiting jobs that their project's entitlement still covers, though nothing but the pool is in their way.

    Covers: besides what the project holds, and what starts or is promised room. Nobody passes a job of the same project
    that has waited for more than 24 hours.
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
        elif decision.verdict is Verdict.START or _has_room_ordered(decision):
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


def _has_room_ordered(decision: Decision) -> bool:
    """Whether the job waits for nothing but jobs that are being stopped."""
    reason = decision.reason
    return reason is not None and (
        reason.code is ReasonCode.WAITING_FOR_PREEMPTED or "is being freed by" in reason.message
    )


def _competes(decision: Decision) -> bool:
    """Whether it waits for capacity, and for nothing else."""
    reason = decision.reason
    if reason is None or {ReasonCode.BACKOFF, ReasonCode.STOCKOUT} & {*reason.also}:
        return False
    return reason.code in (
        ReasonCode.WAITING_FOR_PROJECT_SHARE,
        ReasonCode.WAITING_FOR_POOL,
        ReasonCode.BEHIND_HIGHER_PRIORITY,
    )
