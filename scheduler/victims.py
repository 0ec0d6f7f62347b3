"""Whom a claim evicts.

Layer: `scheduler`, pure. The one place where a better policy (checkpoints, past evictions, debt) goes in; the rules
that it must keep are those of `choose_victims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.capacity import amounts_of
from scheduler.model import Job
from scheduler.shares import Shares

# What an evicted job pays besides its lost work; the slices are created and the program is loaded anew.
_RESTART_SECONDS = 300.0


def choose_victims(
    lacking: Mapping[str, int], running: Sequence[Job], shares: Shares, now: float
) -> tuple[Job, ...] | None:
    """Borrowers whose chips cover what a claim lacks, or None if that cannot be had.

    All or nothing; a victim's project is above its entitlement of a lacking type before each eviction; and enough and
    no more: no victim can be left out. As every borrower may be taken until its project is down to its entitlement, a
    claim within a project's entitlement always succeeds while the entitlements fit the pool.

    Args:
        lacking: Units per type, above 0.
        running: The running jobs that may be evicted at all.
    """
    need = dict(lacking)
    over = {kind: _debts(kind, running, shares) for kind in lacking}
    candidates = [job for job in running if any(over[kind].get(job.project_id, 0) > 0 for kind in lacking)]
    chosen: list[Job] = []
    while need:
        kind = min(need)
        debts = over[kind]
        eligible = [job for job in candidates if job.charged.get(kind, 0) > 0 and debts[job.project_id] > 0]
        if not eligible:
            return None
        victim = min(eligible, key=lambda job: _cost(job, kind, need[kind], debts[job.project_id], now))
        candidates.remove(victim)
        chosen.append(victim)
        for freed, amount in amounts_of(victim.charged):
            if freed in over:
                over[freed][victim.project_id] -= amount
            if freed in need:
                need[freed] -= amount
                if need[freed] <= 0:
                    del need[freed]
    return _without_spare(chosen, lacking, now)


def _debts(kind: str, running: Sequence[Job], shares: Shares) -> dict[str, int]:
    return {project: shares.over(project, kind) for project in {job.project_id for job in running}}


def _cost(job: Job, kind: str, need: int, debt: int, now: float) -> tuple[bool, float, float, str]:
    """What an eviction costs, least first.

    Jobs that fit into what their project borrowed go before those that would take it below its entitlement; then the
    least lost work per unit that is really needed, which among equal sizes is the newest.
    """
    amount = job.charged[kind]
    started_at = now if job.started_at is None else job.started_at
    return amount > debt, _loss(job, now) / min(amount, need), -started_at, job.name


def _loss(job: Job, now: float) -> float:
    """Unit-seconds lost: all since the start, as nothing is known of checkpoints."""
    age = 0.0 if job.started_at is None else max(0.0, now - job.started_at)
    return sum(job.charged.values()) * (age + _RESTART_SECONDS)


def _without_spare(chosen: list[Job], lacking: Mapping[str, int], now: float) -> tuple[Job, ...]:
    """Leaves out, dearest first, whoever the others make unnecessary."""
    spare = {kind: sum(job.charged.get(kind, 0) for job in chosen) - amount for kind, amount in lacking.items()}
    kept = list(chosen)
    for job in sorted(chosen, key=lambda job: (-_loss(job, now), job.name)):
        if all(job.charged.get(kind, 0) <= amount for kind, amount in spare.items()):
            kept.remove(job)
            for kind in spare:
                spare[kind] -= job.charged.get(kind, 0)
    return tuple(kept)
