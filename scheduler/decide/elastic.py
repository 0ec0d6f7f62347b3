"""The extra replicas of elastic jobs: they get what nobody else can use, and give it back before anybody is stopped.

Layer: `scheduler`, pure, internal to one pass. Of an elastic job only the minimum is its project's: it starts as a gang
and is protected like any other job. Replicas beyond it are loans whatever project they belong to, lent last and one by
one, to the project that holds least of its share first. A claim takes them back before it stops any job, its own
project's as well: those of the best served project and of the newest job first.

Invariant: extra replicas never count as held by their project's share.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.decide.capacity import amounts_of
from scheduler.decide.ledger import Ledger
from scheduler.decide.replicas import Replica, units_of
from scheduler.decide.shares import Rank, Standing
from scheduler.decide.user_order import order_across
from scheduler.decide.waiting_jobs import Request
from scheduler.model import Job


def given_back(replicas: Iterable[Replica], lacking: Mapping[str, int]) -> tuple[tuple[Replica, ...], dict[str, int]]:
    """Those of the replicas, in order, that a claim needs back; and what it lacks all the same."""
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
    """The replicas without those, the first ones first, that are not needed beside what is `freed` anyway."""
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
    """The extra replicas that a claim may take back, in the order in which they go.

    Args:
        elastic: The running elastic jobs by name. Those that already give replicas back are left alone.
    """
    jobs = [job for job in elastic.values() if job.shrinking_for is None]
    ranks = {project: ledger.shares.rank(project) for project in {job.project_id for job in jobs}}
    jobs.sort(key=lambda job: (ranks[job.project_id], job.started_at or 0.0, job.name), reverse=True)
    for job in jobs:
        for scaling, count in enumerate(ledger.extra.get(job.name, ())):
            yield from [Replica(job, scaling)] * count


def take_back(
    ledger: Ledger, replicas: Sequence[Replica], victims: Sequence[Job], claimant: Job, lacking: Mapping[str, int]
) -> None:
    """Orders for a claim that replicas go, as far as they are needed beside its victims."""
    freed: Counter[str] = Counter()
    for victim in victims:
        freed.update(victim.owned)
    going = {victim.name for victim in victims}
    for replica in drop_unneeded(replicas, freed, lacking):
        if replica.job.name not in going:
            message = f"gives extra replicas back for {claimant.name} of project {claimant.project_id}"
            ledger.shrink(replica, claimant, message)


def lend_replicas(ledger: Ledger, jobs: Mapping[str, Job]) -> None:
    """Gives what is left to elastic jobs that run or start, replica by replica, the least served project first.

    Args:
        jobs: All jobs by name.
    """
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
        if _may_have(ledger, replica, held):
            ledger.grow(replica, "gets extra replicas of idle capacity")
            held[replica.job.project_id].update(dict(replica.units))
            heapq.heappush(line, place(replica.job, scaling))


def _may_have(ledger: Ledger, replica: Replica, held: Mapping[str, Mapping[str, int]]) -> bool:
    job, project = replica.job, replica.job.project_id
    return (
        ledger.extra[job.name][replica.scaling] < job.scaling[replica.scaling].most
        and bool(replica.units)
        and ledger.fits_extra(replica)
        and ledger.shares.permits(project, replica.units, held[project])
        and ledger.leaves_unlent(project, Request(replica.units, False))
    )
