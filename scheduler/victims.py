"""Whom a claim evicts: borrowers, as few as will do, and those whose stop costs least.

Layer: `scheduler`, pure. What is weighed, the more important first:

1. A job that was evicted `EVICTIONS_MAX` times already goes last.
2. A job whose loss no checkpoint bounds (more than a checkpoint interval and a restart per unit) goes after the others.
3. Gangs that their project is never entitled to, jobs whose last evictions saved nothing, and jobs that have not run
   for their minimum time are spared while others will do.
4. A job that fits into what its project has borrowed goes before one that takes the project below its entitlement.
5. Projects deep in debt pay before those that have borrowed little (`DEBT_GATE`).
6. A job that would not run either if its project could not borrow goes before one that would.
7. The least lost work per unit that is really needed; among equals the newest.

These are orders and no vetoes: an owner is never refused because of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quota import Policy
from scheduler.capacity import amounts_of
from scheduler.model import Job
from scheduler.shares import Shares
from scheduler.turns import Turns

# What an evicted job pays besides its lost work: nodes are created and the program is loaded anew.
RESTART_SECONDS = 300.0
# Work that a program which checkpoints at all may lose.
CHECKPOINT_SECONDS = 1800.0
EVICTIONS_MAX = 7
_FUTILE_MAX = 2
DEBT_GATE = 1 / 3

_Key = tuple[bool, bool, int, bool, bool, bool, float, float, str]


@dataclass(slots=True)
class _Candidate:
    """A running job with what does not depend on the claim."""

    job: Job
    loss: float
    dear: bool
    spared: int
    core: bool = False


@dataclass(slots=True)
class _Borrower:
    """A project's running jobs that hold the type in question, and what it has borrowed of that."""

    over: int
    entitlement: int
    candidates: list[_Candidate] = field(default_factory=list)

    @property
    def debt(self) -> float:
        """What it borrowed in parts of its entitlement; a project without one is deepest in debt."""
        return self.over / self.entitlement if self.entitlement else float("inf")


class Victims:
    """Chooses victims for the claims of one pass; `forget` is told of each that went."""

    def __init__(
        self, policy: Policy, shares: Shares, running_of: Mapping[str, Mapping[str, Job]], now: float, turns: Turns
    ) -> None:
        """`running_of`: the running jobs by project and name."""
        self._policy = policy
        self._turns = turns
        self._shares = shares
        self._now = now
        self._running = {project: dict(jobs) for project, jobs in running_of.items()}
        self._known: dict[str, _Candidate] = {}
        self._core: dict[tuple[str, str], frozenset[str]] = {}

    def forget(self, victim: Job) -> None:
        """That job was evicted."""
        del self._running[victim.project_id][victim.name]
        self._core = {place: names for place, names in self._core.items() if place[0] != victim.project_id}

    def choose(self, lacking: Mapping[str, int], *, spared_too: bool = True) -> tuple[Job, ...] | None:
        """Borrowers whose units cover what a claim lacks, or None if that cannot be had.

        All or nothing; a victim's project is above its entitlement of a lacking type before each eviction; and no
        victim can be left out. As every borrower may be taken until its project is down to its entitlement, a claim
        within a project's entitlement always succeeds while the entitlements fit the pool.

        Args:
            lacking: Units per type, above 0.
            spared_too: Whether jobs that rule 3 spares may be taken if nobody else is left.
        """
        need = dict(lacking)
        over = {kind: self._borrowers(kind, spared_too) for kind in lacking}
        chosen: list[_Candidate] = []
        while need:
            kind = min(need)
            found = self._cheapest(kind, need[kind], over[kind])
            if found is None:
                return None
            chosen.append(found)
            for borrowers in over.values():
                borrower = borrowers.get(found.job.project_id)
                if borrower is not None and found in borrower.candidates:
                    borrower.candidates.remove(found)
            for freed, amount in amounts_of(found.job.charged):
                if freed in over and found.job.project_id in over[freed]:
                    over[freed][found.job.project_id].over -= amount
                if freed in need:
                    need[freed] -= amount
                    if need[freed] <= 0:
                        del need[freed]
        return _without_spare(chosen, lacking)

    def _borrowers(self, kind: str, spared_too: bool) -> dict[str, _Borrower]:
        found = {}
        for project in sorted(self._running):
            over = self._shares.over(project, kind)
            if over <= 0:
                continue
            core = self._core_of(project, kind)
            candidates = []
            for job in self._running[project].values():
                if job.charged.get(kind, 0) > 0:
                    candidate = self._candidate(job)
                    if spared_too or not candidate.spared:
                        candidate.core = job.name in core
                        candidates.append(candidate)
            found[project] = _Borrower(over, self._shares.entitlement(project, kind), candidates)
        return found

    def _cheapest(self, kind: str, need: int, borrowers: Mapping[str, _Borrower]) -> _Candidate | None:
        deepest = max((b.debt for b in borrowers.values() if b.over > 0 and b.candidates), default=0.0)
        best: tuple[_Key, _Candidate] | None = None
        for borrower in borrowers.values():
            if borrower.over <= 0:
                continue
            light = borrower.debt < DEBT_GATE * deepest
            for candidate in borrower.candidates:
                key = _key(candidate, kind, need, borrower.over, light)
                if best is None or key < best[0]:
                    best = key, candidate
        return best[1] if best is not None else None

    def _candidate(self, job: Job) -> _Candidate:
        known = self._known.get(job.name)
        if known is None:
            units = sum(job.charged.values())
            loss = units * (self._unsaved(job) + RESTART_SECONDS)
            dear = loss > units * (CHECKPOINT_SECONDS + RESTART_SECONDS)
            known = self._known[job.name] = _Candidate(job, loss, dear, self._spared(job))
        return known

    def _unsaved(self, job: Job) -> float:
        """Seconds of work that no checkpoint holds."""
        started = self._now if job.started_at is None else job.started_at
        return max(0.0, self._now - max(started, job.checkpointed_at or started))

    def _spared(self, job: Job) -> int:
        if any(amount > self._shares.entitlement(job.project_id, kind) for kind, amount in job.charged.items()):
            return 3
        if job.futile_evictions >= _FUTILE_MAX or job.evictions >= EVICTIONS_MAX:
            return 2
        age = 0.0 if job.started_at is None else self._now - job.started_at
        return 1 if age < self._policy.rules(job.project_id).minimum_runtime_seconds else 0

    def _core_of(self, project: str, kind: str) -> frozenset[str]:
        """The project's running jobs that would fit its entitlement, in its own order."""
        core = self._core.get((project, kind))
        if core is None:
            room, names = self._shares.entitlement(project, kind), []
            for job in sorted(self._running[project].values(), key=self._turns.place):
                amount = job.charged.get(kind, 0)
                if 0 < amount <= room:
                    room -= amount
                    names.append(job.name)
            core = self._core[project, kind] = frozenset(names)
        return core


def _key(candidate: _Candidate, kind: str, need: int, over: int, light: bool) -> _Key:
    job = candidate.job
    amount = job.charged[kind]
    started = job.started_at or 0.0
    lost = candidate.loss / min(amount, need)
    many = job.evictions >= EVICTIONS_MAX
    if candidate.dear:
        # What has no checkpoints is weighed by what is lost alone.
        return many, True, 0, amount > over, False, False, lost, -started, job.name
    return many, False, candidate.spared, amount > over, light, candidate.core, lost, -started, job.name


def _without_spare(chosen: Sequence[_Candidate], lacking: Mapping[str, int]) -> tuple[Job, ...]:
    """Leaves out, dearest first, whoever the others make unnecessary."""
    spare = {kind: sum(c.job.charged.get(kind, 0) for c in chosen) - amount for kind, amount in lacking.items()}
    kept = list(chosen)
    for candidate in sorted(chosen, key=lambda c: (-c.loss, c.job.name)):
        charged = candidate.job.charged
        if all(charged.get(kind, 0) <= amount for kind, amount in spare.items()):
            kept.remove(candidate)
            for kind in spare:
                spare[kind] -= charged.get(kind, 0)
    return tuple(candidate.job for candidate in kept)
