"""Extra replicas of elastic jobs.

An elastic job's minimum starts as a gang and is protected like any job. Extra replicas are loans: lent last, one by
one, to the least served project first. A claim takes them back before it evicts any job, those of its own project
included: the best served project and the newest job give first.

Invariant: extra replicas never count against their project's share.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.decide.capacity import amounts_of
from scheduler.decide.ledger import Ledger
from scheduler.decide.project_queue import Request
from scheduler.decide.replicas import Replica, units_of
from scheduler.decide.shares import Rank, Standing
from scheduler.decide.user_order import order_across
from scheduler.model import Job


def given_back(replicas: Iterable[Replica], lacking: Mapping[str, int]) -> tuple[tuple[Replica, ...], dict[str, int]]:
    """The replicas, in order, that a claim needs back, and what it still lacks."""
    need, chosen = dict(lacking), list[Replica]()
    for replica in replicas:
        if not need:
            break
        helps = [(resource, amount) for resource, amount in replica.units if resource in need]
        if helps:
            chosen.append(replica)
        for resource, amount in helps:
            need[resource] -= amount
            if need[resource] <= 0:
                del need[resource]
    return tuple(chosen), need


def drop_unneeded(replicas: Sequence[Replica], freed: Mapping[str, int], lacking: Mapping[str, int]) -> list[Replica]:
    """The replicas that `lacking` needs besides `freed`; the first ones are dropped first."""
    spare = Counter(freed)
    spare.subtract(lacking)
    for replica in replicas:
        spare.update(dict(replica.units))
    kept = []
    for replica in replicas:
        if all(amount <= spare[resource] for resource, amount in replica.units if resource in lacking):
            spare.subtract(dict(replica.units))
        else:
            kept.append(replica)
    return kept


def reclaimable(ledger: Ledger, elastic: Mapping[str, Job]) -> Iterator[Replica]:
    """The extra replicas that a claim may take back, in that order, except of jobs already giving some back."""
    jobs = [job for job in elastic.values() if job.shrinking_for is None]
    ranks = {project: ledger.shares.rank(project) for project in {job.project_id for job in jobs}}
    jobs.sort(key=lambda job: (ranks[job.project_id], job.started_at or 0.0, job.name), reverse=True)
    for job in jobs:
        for scaling, count in enumerate(ledger.extra.get(job.name, ())):
            yield from [Replica(job, scaling)] * count


def take_back(
    ledger: Ledger, replicas: Sequence[Replica], victims: Sequence[Job], claimant: Job, lacking: Mapping[str, int]
) -> None:
    """Take back for a claim the replicas needed besides its victims."""
    freed: Counter[str] = Counter()
    for victim in victims:
        freed.update(victim.owned)
    going = {victim.name for victim in victims}
    for replica in drop_unneeded(replicas, freed, lacking):
        if replica.job.name not in going:
            message = f"returns extra replicas for {claimant.name} of project {claimant.project_id}"
            ledger.shrink(replica, claimant, message)


def lend_replicas(ledger: Ledger, jobs: Mapping[str, Job]) -> None:
    """Lend what is left to elastic jobs that run or start, one replica at a time, the least served project first."""
    awaiting = ledger.awaiting_projects()
    elastic = [jobs[name] for name in ledger.extra if name not in ledger.resized]
    held = {job.project_id: Counter[str]() for job in elastic}
    for job in elastic:
        held[job.project_id].update(dict(units_of(job, ledger.extra[job.name])))

    def place(job: Job, scaling: int) -> tuple[Rank, tuple[int, float, str], int]:
        standing = Standing(ledger.shares, job.project_id)
        return standing.rank(amounts_of(held[job.project_id])), order_across(job), scaling

    line = [
        place(job, scaling)
        for job in elastic
        if job.shrinking_for is None and job.project_id not in awaiting
        for scaling in range(len(job.scaling))
    ]
    heapq.heapify(line)
    while line:
        _, (_, _, name), scaling = heapq.heappop(line)
        replica = Replica(jobs[name], scaling)
        if _may_grow(ledger, replica, held):
            ledger.grow(replica, "gets extra replicas from idle capacity")
            held[replica.job.project_id].update(dict(replica.units))
            heapq.heappush(line, place(replica.job, scaling))


def _may_grow(ledger: Ledger, replica: Replica, held: Mapping[str, Mapping[str, int]]) -> bool:
    job, project = replica.job, replica.job.project_id
    return (
        ledger.extra[job.name][replica.scaling] < job.scaling[replica.scaling].most
        and bool(replica.units)
        and ledger.fits_extra(replica)
        and ledger.shares.permits(project, replica.units, held[project])
        and ledger.leaves_unlent(project, Request(replica.units, False))
    )
