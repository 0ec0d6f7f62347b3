"""Which borrowers a claim evicts: as few as possible, and the ones whose eviction costs least.

Criteria, the most important first:

1. A job already evicted `EVICTIONS_MAX` times goes last.
2. A job with more unsaved work than a checkpoint interval goes after the others.
3. Jobs larger than their project's entitlement, jobs whose last evictions saved nothing, and jobs below their minimum
   runtime are spared while others suffice.
4. A job within what its project has borrowed goes before one that takes the project below its entitlement.
5. A job that would not run without borrowing goes before one that would.
6. The least unsaved work per needed unit, discounted (`DISCOUNT_EXPONENT`) by running time and by the project's debt.
   Without recent checkpoints only unsaved work counts. Ties: the newest job.

Restart costs are not weighed, since every victim pays them. Running time is a discount because a young job often ends
soon, while an old one would keep its loan for hours, and the same loss is a smaller part of its work.

These are orders, not vetoes: they never refuse an owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quota import Policy
from scheduler.decide.capacity import Amounts, amounts_of
from scheduler.decide.cooldown import FUTILE_MAX
from scheduler.decide.deadline import started_late
from scheduler.decide.ledger import Ledger
from scheduler.decide.loans import covering
from scheduler.decide.shares import Shares
from scheduler.decide.user_order import UserOrder
from scheduler.model import Job

# Cost of a restart besides the lost work: creating nodes and loading the program. Also the least age of a job.
RESTART_SECONDS = 300.0
# The most unsaved work of a program that checkpoints.
CHECKPOINT_SECONDS = 1800.0
EVICTIONS_MAX = 7
# How long a job that started late runs before a recall for another overdue job may evict it.
_PROTECTED_SECONDS = 900.0
# Unsaved work is divided by running time and debt to this power. A lower value wastes less work and lengthens waits,
# because large borrowers keep their loans (docs/adr/0010).
DISCOUNT_EXPONENT = 0.7

# Criteria 1 to 3: evicted too often, unbounded loss, how far spared.
_Rank = tuple[bool, bool, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    job: Job
    # Unit-seconds that its eviction costs, restart included.
    loss: float
    # Criterion 6 without the debt.
    price: float
    unbounded_loss: bool
    spared: int


@dataclass(slots=True)
class _BorrowingProject:
    """A project's running jobs that hold the type in question, sorted once per pass.

    `core`: names of those that would run without borrowing. `lines`: by rank, then by spared, units and core: the
    cheapest to evict first.
    """

    entitlement: int
    core: frozenset[str]
    lines: dict[_Rank, dict[tuple[bool, int, bool], list[_Candidate]]] = field(default_factory=dict)

    def debt(self, over: int) -> float:
        """Units borrowed relative to the entitlement; infinite for a project without one."""
        return over / self.entitlement if self.entitlement else float("inf")

    def remove(self, name: str) -> None:
        """Remove a job that is not in the core."""
        for line in (line for lines in self.lines.values() for line in lines.values()):
            for place, candidate in enumerate(line):
                if candidate.job.name == name:
                    del line[place]
                    return


class Victims:
    def __init__(
        self,
        policy: Policy,
        shares: Shares,
        running_of: Mapping[str, Mapping[str, Job]],
        now: float,
        user_order: UserOrder,
    ) -> None:
        self._policy = policy
        self._user_order = user_order
        self._shares = shares
        self._now = now
        self._running_of = running_of
        self._gone: set[str] = set()
        self._candidates: dict[str, list[_Candidate]] = {}
        self._borrowers: dict[tuple[str, str], _BorrowingProject] = {}
        self._lower: dict[tuple[str, int], tuple[list[_Candidate], Counter[str]]] = {}

    def evict(self, ledger: Ledger, victim: Job, claimant: Job, message: str) -> None:
        ledger.evict(victim, claimant, message)
        self._gone.add(victim.name)
        self._lower = {place: known for place, known in self._lower.items() if place[0] != victim.project_id}
        for resource in victim.charged:
            borrower = self._borrowers.get((victim.project_id, resource))
            if borrower is not None and victim.name in borrower.core:
                del self._borrowers[victim.project_id, resource]  # others take its place in the core
            elif borrower is not None:
                borrower.remove(victim.name)

    def for_owner(self, lacking: Mapping[str, int]) -> tuple[Job, ...] | None:
        """Borrowers that cover what a claim within its project's entitlement lacks, or None.

        All or nothing. Before each eviction the victim's project is above its entitlement of a lacking type, and no
        victim is superfluous. Such a claim always succeeds while the entitlements fit the pool.
        """
        return self._choose(lacking, include_spared=True, may_go=None)

    def for_recall(
        self, lacking: Mapping[str, int], waiting: Callable[[str], Iterable[Amounts]], *, include_spared: bool = False
    ) -> tuple[Job, ...] | None:
        """Loans that cover what a claim beyond its project's share lacks, or None.

        A project may fall below its entitlement only if none of its jobs would then be within its share; such a job
        would evict the claimant at once. If a single type is lacking, loans that cover it are found whenever they
        exist. `waiting(project)`: what its waiting jobs ask for. `include_spared`: take jobs that criterion 3 spares.
        """

        # By project and amounts; a project's chosen victims only grow.
        known: dict[tuple[str, Amounts, int], bool] = {}

        def may_go(candidate: _Candidate, chosen: Iterable[_Candidate]) -> bool:
            if not include_spared and self._is_protected(candidate.job):
                return False
            project = candidate.job.project_id
            going = [amounts_of(other.job.owned) for other in (*chosen, candidate) if other.job.project_id == project]
            case = project, going[-1], len(going)
            answer = known.get(case)
            if answer is None:
                answer = known[case] = self._are_loans(project, going, waiting)
            return answer

        chosen = self._choose(lacking, include_spared=include_spared, may_go=may_go)
        return self._exactly(lacking, include_spared) if chosen is None and len(lacking) == 1 else chosen

    def _are_loans(self, project: str, going: Sequence[Amounts], waiting: Callable[[str], Iterable[Amounts]]) -> bool:
        """Whether none of the project's jobs would be within its share if it gave up that much."""
        below: dict[str, int] = {}
        for amounts in going:
            for resource, amount in amounts:
                below[resource] = below.get(resource, -self._shares.over(project, resource)) + amount
        if max(below.values()) <= 0:
            return True
        return not any(
            all(amount <= below.get(resource, -self._shares.over(project, resource)) for resource, amount in amounts)
            for amounts in (*waiting(project), *going)
        )

    def of_lower_priority(self, claimant: Job, lacking: Mapping[str, int]) -> tuple[Job, ...] | None:
        """Jobs of the claimant's own project that it may replace, or None if they do not cover what is lacking.

        Only jobs past the project's minimum runtime: the lowest priority first, then the least lost work.
        """
        below, units = self._below(claimant.project_id, claimant.priority)
        if any(amount > units[resource] for resource, amount in lacking.items()):
            return None
        need, chosen = dict(lacking), list[_Candidate]()
        for candidate in below:
            if not need:
                break
            helps = [(resource, amount) for resource, amount in amounts_of(candidate.job.owned) if resource in need]
            if helps:
                chosen.append(candidate)
            for resource, amount in helps:
                need[resource] -= amount
                if need[resource] <= 0:
                    del need[resource]
        return _drop_unneeded(chosen, lacking)

    def _below(self, project: str, priority: int) -> tuple[list[_Candidate], Counter[str]]:
        """Jobs that may go for a job of that project and priority, in that order, and their units."""
        known = self._lower.get((project, priority))
        if known is None:
            latest = self._now - self._policy.rules(project).minimum_runtime_seconds
            below = [
                candidate
                for candidate in (self._candidates_of(project) if project in self._running_of else ())
                if candidate.job.priority > priority
                and candidate.job.name not in self._gone
                and (self._now if candidate.job.started_at is None else candidate.job.started_at) <= latest
            ]
            below.sort(key=lambda candidate: -candidate.job.priority)
            units: Counter[str] = Counter()
            for candidate in below:
                units.update(candidate.job.owned)
            known = self._lower[project, priority] = below, units
        return known

    def _choose(
        self,
        lacking: Mapping[str, int],
        *,
        include_spared: bool,
        may_go: Callable[[_Candidate, Iterable[_Candidate]], bool] | None,
    ) -> tuple[Job, ...] | None:
        need = dict(lacking)
        over = {resource: self._over(resource) for resource in lacking}
        chosen: dict[str, _Candidate] = {}

        def is_free(candidate: _Candidate) -> bool:
            return candidate.job.name not in chosen and (may_go is None or may_go(candidate, chosen.values()))

        while need:
            resource = min(need)
            found = self._cheapest(resource, need[resource], over[resource], is_free, include_spared=include_spared)
            if found is None:
                return None
            chosen[found.job.name] = found
            for freed, amount in amounts_of(found.job.owned):
                if freed in over and found.job.project_id in over[freed]:
                    over[freed][found.job.project_id] -= amount
                if freed in need:
                    need[freed] -= amount
                    if need[freed] <= 0:
                        del need[freed]
        return _drop_unneeded([*chosen.values()], lacking)

    def _exactly(self, lacking: Mapping[str, int], include_spared: bool) -> tuple[Job, ...] | None:
        """Loans of one type that cover what is lacking with the least surplus."""
        ((resource, need),) = lacking.items()
        over = sorted(
            self._over(resource).items(), key=lambda item: (self._borrower(item[0], resource).debt(item[1]), item[0])
        )
        loans = [
            [
                candidate.job
                for candidate in self._candidates_of(project)
                if candidate.job.owned.keys() == {resource}
                and candidate.job.name not in self._gone
                and (include_spared or not (candidate.spared or self._is_protected(candidate.job)))
            ]
            for project, _ in over
        ]
        units = [[job.owned[resource] for job in jobs] for jobs in loans]
        found = covering([(limit, of) for (_, limit), of in zip(over, units, strict=True)], need)
        return None if found is None else tuple(loans[borrower][loan] for borrower, loan in found)

    def _over(self, resource_type: str) -> dict[str, int]:
        over = {project: self._shares.over(project, resource_type) for project in self._running_of}
        return {project: amount for project, amount in over.items() if amount > 0}

    def _cheapest(
        self,
        resource_type: str,
        need: int,
        over: Mapping[str, int],
        is_free: Callable[[_Candidate], bool],
        *,
        include_spared: bool,
    ) -> _Candidate | None:
        borrowers = [(self._borrower(project, resource_type), amount) for project, amount in over.items() if amount > 0]
        for rank in sorted({rank for borrower, _ in borrowers for rank in borrower.lines}):
            unbounded_loss = rank[1]
            best = None
            for borrower, amount in borrowers:
                discount = 1.0 if unbounded_loss else borrower.debt(amount) ** DISCOUNT_EXPONENT
                for (spared, units, core), line in borrower.lines.get(rank, {}).items():
                    head = None if spared and not include_spared else next(filter(is_free, line), None)
                    if head is not None:
                        price, started = head.price / min(units, need) / discount, head.job.started_at or 0.0
                        key = units > amount, core and not unbounded_loss, price, -started, head.job.name
                        if best is None or key < best[0]:
                            best = key, head
            if best is not None:
                return best[1]
        return None

    def _borrower(self, project: str, resource_type: str) -> _BorrowingProject:
        borrower = self._borrowers.get((project, resource_type))
        if borrower is None:
            borrower = _BorrowingProject(
                self._shares.entitlement(project, resource_type), self._core_of(project, resource_type)
            )
            for candidate in self._candidates_of(project):
                name, units = candidate.job.name, candidate.job.owned.get(resource_type, 0)
                if units > 0 and name not in self._gone:
                    rank = candidate.job.evictions >= EVICTIONS_MAX, candidate.unbounded_loss, _level(candidate)
                    place = candidate.spared > 0, units, name in borrower.core
                    borrower.lines.setdefault(rank, {}).setdefault(place, []).append(candidate)
            self._borrowers[project, resource_type] = borrower
        return borrower

    def _candidates_of(self, project: str) -> list[_Candidate]:
        """The project's jobs, the cheapest to evict first."""
        candidates = self._candidates.get(project)
        if candidates is None:
            candidates = [self._candidate(job) for job in self._running_of[project].values()]
            candidates.sort(
                key=lambda candidate: (candidate.price, -(candidate.job.started_at or 0.0), candidate.job.name)
            )
            self._candidates[project] = candidates
        return candidates

    def _candidate(self, job: Job) -> _Candidate:
        units, unsaved, age = sum(job.owned.values()), self._unsaved(job), self._age(job)
        unbounded_loss = unsaved > CHECKPOINT_SECONDS
        price = (
            units
            * unsaved
            / (1.0 if unbounded_loss else (RESTART_SECONDS + age + job.evicted_seconds) ** DISCOUNT_EXPONENT)
        )
        return _Candidate(job, units * (unsaved + RESTART_SECONDS), price, unbounded_loss, self._spared(job, age))

    def _unsaved(self, job: Job) -> float:
        started = self._now if job.started_at is None else job.started_at
        return max(0.0, self._now - max(started, job.checkpointed_at or started))

    def _spared(self, job: Job, age: float) -> int:
        for resource, amount in job.owned.items():
            if amount > self._shares.entitlement(job.project_id, resource):
                return 3
        if job.futile_evictions >= FUTILE_MAX or job.evictions >= EVICTIONS_MAX:
            return 2
        return 1 if age < self._policy.rules(job.project_id).minimum_runtime_seconds else 0

    def _is_protected(self, job: Job) -> bool:
        """Whether a recall may not evict it, because it was itself started by a recall recently."""
        return started_late(job) and self._age(job) < _PROTECTED_SECONDS

    def _age(self, job: Job) -> float:
        return 0.0 if job.started_at is None else max(0.0, self._now - job.started_at)

    def _core_of(self, project: str, resource_type: str) -> frozenset[str]:
        """The project's running jobs that would fit its entitlement, in its own order."""
        available, names = self._shares.entitlement(project, resource_type), []
        for job in sorted(self._running_of[project].values(), key=self._user_order.place):
            amount = job.owned.get(resource_type, 0)
            if 0 < amount <= available and job.name not in self._gone:
                available -= amount
                names.append(job.name)
        return frozenset(names)


def _level(candidate: _Candidate) -> int:
    return 0 if candidate.unbounded_loss else candidate.spared


def _drop_unneeded(chosen: Sequence[_Candidate], lacking: Mapping[str, int]) -> tuple[Job, ...]:
    """The victims without those, most costly first, that the others make superfluous."""
    spare = {
        resource: sum(c.job.owned.get(resource, 0) for c in chosen) - amount for resource, amount in lacking.items()
    }
    kept = list(chosen)
    for candidate in sorted(chosen, key=lambda c: (-c.loss, c.job.name)):
        charged = candidate.job.owned
        if all(charged.get(resource, 0) <= amount for resource, amount in spare.items()):
            kept.remove(candidate)
            for resource in spare:
                spare[resource] -= charged.get(resource, 0)
    return tuple(candidate.job for candidate in kept)
