"""Incumbents: running and stopping jobs with their sums, kept from pass to pass. A pass works on copies of the sums."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter

from quota import Policy
from scheduler.decide.capacity import Amounts, Capacity, amounts_of
from scheduler.decide.replicas import as_stopping, units_of
from scheduler.model import Decision, Job, JobStatus, Verdict


class Incumbents:
    """Running and stopping jobs under one quota, by name; `elastic` are running jobs that can have extra replicas.

    Attributes:
        running_of: Running jobs by project and name; a missing project has none.
        holding: What all take, tier by tier.
        lasting: What the running ones take, tier by tier.
        taken: Units that all hold, by type.
        held: Units that the running ones hold, by project and type.
        delegated: Number of delegated jobs by project.
        slots: How many run on the bastion's own host, by user.
    """

    def __init__(self, policy: Policy) -> None:
        self.running: dict[str, Job] = {}
        self.stopping: dict[str, Job] = {}
        self.running_of: dict[str, dict[str, Job]] = {}
        self.holding = Capacity(policy.tiers)
        self.lasting = Capacity(policy.tiers)
        self.taken: Counter[str] = Counter()
        self.held: dict[str, dict[str, int]] = {}
        self.slots: Counter[str] = Counter()
        self.elastic: dict[str, Job] = {}
        self.delegated: Counter[str] = Counter()
        self._decisions: dict[str, Decision] = {}
        self._by_start: list[tuple[float, str]] = []

    def add(self, job: Job) -> None:
        charged, tier = amounts_of(job.charged), self.holding.label(job.tier)
        self.holding.take(charged, tier)
        self.taken.update(dict(charged))
        self.slots[job.user_id] += job.on_bastion
        self.delegated[job.project_id] += job.delegated
        verdict = Verdict.STOPPING
        if job.status is JobStatus.RUNNING:
            verdict = Verdict.KEEP
            self.lasting.take(_lasting(job), tier)
            held = self.held.setdefault(job.project_id, {})
            for resource, amount in amounts_of(job.owned):
                held[resource] = held.get(resource, 0) + amount
            if job.scaling:
                self.elastic[job.name] = job
            self.running[job.name] = job
            self.running_of.setdefault(job.project_id, {})[job.name] = job
        else:
            self.stopping[job.name] = job
        self._decisions[job.name] = Decision(
            name=job.name,
            verdict=verdict,
            tier=job.tier,
            evicted_for=None if verdict is Verdict.KEEP else job.evicted_for,
            extra=tuple(scaling.extra for scaling in job.scaling) if verdict is Verdict.KEEP else (),
        )
        insort(self._by_start, _start(job))

    def remove(self, job: Job) -> None:
        """Undo `add` of this value."""
        charged, tier = amounts_of(job.charged), self.holding.label(job.tier)
        self.holding.give_back(charged, tier)
        self.taken.subtract(dict(charged))
        self.slots[job.user_id] -= job.on_bastion
        self.delegated[job.project_id] -= job.delegated
        self.slots += Counter()  # drops zero counts
        if job.status is JobStatus.RUNNING:
            self.lasting.give_back(_lasting(job), tier)
            held = self.held[job.project_id]
            for resource, amount in amounts_of(job.owned):
                held[resource] -= amount
            self.elastic.pop(job.name, None)
            del self.running[job.name], self.running_of[job.project_id][job.name]
        else:
            del self.stopping[job.name]
        del self._decisions[job.name]
        del self._by_start[bisect_left(self._by_start, _start(job))]

    def decisions(self) -> list[Decision]:
        return [self._decisions[name] for _, name in self._by_start]

    def by_claimant(self) -> dict[str, list[Job]]:
        """Stopping jobs by the name of the job they were evicted for ("": none), sorted by name.

        Replicas that a job gives back appear as a stopping job of its name.
        """
        shrinking = [replicas for job in self.elastic.values() if (replicas := _leaving(job)) is not None]
        leaving: dict[str, list[Job]] = {}
        for job in sorted((*self.stopping.values(), *shrinking), key=lambda job: job.name):
            leaving.setdefault(job.evicted_for or "", []).append(job)
        return leaving


def _start(job: Job) -> tuple[float, str]:
    return job.started_at or 0.0, job.name


def _lasting(job: Job) -> Amounts:
    return amounts_of(Counter(job.owned) + _extra(job)) if job.scaling else amounts_of(job.charged)


def _extra(job: Job) -> Counter[str]:
    return Counter(dict(units_of(job, [scaling.extra for scaling in job.scaling])))


def _leaving(job: Job) -> Job | None:
    leaving = Counter(job.charged)
    leaving.subtract(dict(_lasting(job)))
    units = amounts_of(leaving)
    return as_stopping(job, units, job.shrinking_for) if units else None
