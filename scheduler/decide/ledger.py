"""The decisions of one pass so far: who starts, who is evicted, and which capacity is promised to whom.

Three views of the pool:
- `physical`: what is taken now, stopping jobs included.
- `now`: `physical` plus the free part that is kept for promises.
- `later`: the pool once all stopping jobs are gone and all promises are kept.

A job starts only if it fits in all of them, so it never takes units that are not free yet or were freed for another.

Invariant: running, stopping and starting jobs never exceed a limit that they did not exceed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from quota import Policy
from scheduler.decide.capacity import Amounts, Capacity, amounts_of
from scheduler.decide.incumbents import Incumbents
from scheduler.decide.lending import KeptBack
from scheduler.decide.project_queue import Request
from scheduler.decide.replicas import Replica, as_stopping, units_of
from scheduler.decide.shares import Shares
from scheduler.model import Job


@dataclass(frozen=True, slots=True)
class Promise:
    """Capacity kept for a job until it fits.

    A claim has, or had, victims of its own and persists from pass to pass (`Job.promised`). Other promises count on
    capacity that is being freed anyway and are made anew in each pass.
    """

    job: Job
    claim: bool
    tier: int
    amounts: Amounts
    # What its own victims do not free.
    remainder: Amounts
    # The part of `remainder` kept out of what is free now.
    kept: Amounts
    # The part of `remainder` that comes from stopping jobs without a claimant.
    awaited: Amounts


@dataclass(slots=True)
class Ledger:
    physical: Capacity
    now: Capacity
    later: Capacity
    shares: Shares
    # Free slots of the bastion's own host; None: unlimited.
    slots: int | None
    # Slots that each user holds in all projects.
    slots_of: Counter[str] = field(default_factory=Counter)
    # Running, stopping and starting jobs.
    holders: dict[str, Job] = field(default_factory=dict)
    # Stopping and just evicted jobs by the name of their claimant.
    leaving_for: dict[str, list[Job]] = field(default_factory=dict)
    # Units of stopping jobs without a claimant that no promise counts on.
    unclaimed: Counter[str] = field(default_factory=Counter)
    # The same before any promise.
    coming: Counter[str] = field(default_factory=Counter)
    # What each claim's victims free beyond its demand; part of `coming`.
    spare: dict[str, Counter[str]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    evictions: dict[str, str] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    # Per type, the projects with a lending limit.
    limited_lenders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # What `hold_back` keeps for each project and type.
    kept_back: dict[tuple[str, str], KeptBack] = field(default_factory=dict)
    # Units of `holders`.
    taken: Counter[str] = field(default_factory=Counter)
    # Extra replicas of elastic jobs that run or start, by scaling, without those being given back.
    extra: dict[str, list[int]] = field(default_factory=dict)
    # Elastic jobs whose replicas change, and the claimant they give some back for; "" if they get some.
    resized: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(incumbents: Incumbents, policy: Policy, bastion_slots: int | None, shares: Shares) -> Ledger:
        return Ledger(
            physical=incumbents.holding.copy(),
            now=incumbents.holding.copy(),
            later=incumbents.lasting.copy(),
            shares=shares,
            slots=None if bastion_slots is None else bastion_slots - incumbents.slots.total(),
            slots_of=incumbents.slots.copy(),
            holders={**incumbents.running, **incumbents.stopping},
            leaving_for=incumbents.by_claimant(),
            limited_lenders=_limited_lenders(policy),
            taken=incumbents.taken.copy(),
            extra={name: [scaling.extra for scaling in job.scaling] for name, job in incumbents.elastic.items()},
        )

    def settle_claims(self, claimants: Mapping[str, Job]) -> None:
        """Assign stopping jobs to `claimants` (competing jobs by name); those of other claimants become unclaimed."""
        for name in [name for name in self.leaving_for if name not in claimants]:
            for job in self.leaving_for.pop(name):
                self.unclaimed.update(dict(amounts_of(job.charged)))
        self.coming.update(self.unclaimed)
        for name in self.leaving_for:
            self._offer_spare(claimants[name])

    def _offer_spare(self, claimant: Job) -> None:
        """Count what a claim's victims free beyond its demand as unclaimed."""
        spare: Counter[str] = Counter()
        for victim in self.leaving_for.get(claimant.name, ()):
            spare.update(dict(amounts_of(victim.charged)))
        spare.subtract(claimant.demand)
        spare = +spare
        for ledger in (self.unclaimed, self.coming):
            ledger.subtract(self.spare.get(claimant.name, Counter()))
            ledger.update(spare)
        self.spare[claimant.name] = spare

    def hold_back(self, kept: Mapping[tuple[str, str], KeptBack]) -> None:
        """Keep free units, by project and type, from all later starts of this pass."""
        self.kept_back = dict(kept)
        sums: Counter[str] = Counter()
        for (_, resource), back in kept.items():
            sums[resource] += back.units
        for resource, amount in sums.items():
            free = max(0, min(self.now.free(resource), self.later.free(resource)))
            self.now.take(((resource, min(amount, free)),), self.now.last)

    def unlent(self, project: str, resource_type: str) -> int:
        """Units that other projects do not lend, without what `hold_back` already keeps for them."""
        return sum(
            max(0, self.shares.unlent(other, resource_type) - self._kept_units(other, resource_type))
            for other in self.limited_lenders.get(resource_type, ())
            if other != project
        )

    def _kept_units(self, project: str, resource_type: str) -> int:
        back = self.kept_back.get((project, resource_type))
        return back.units if back is not None else 0

    def leaves_unlent(self, project: str, request: Request) -> bool:
        """Whether a job of the project that fits leaves what other projects do not lend."""
        for resource, amount in request.amounts:
            if resource in self.limited_lenders:
                free = min(self.now.free(resource), self.later.free(resource))
                if amount > free - self.unlent(project, resource):
                    return False
        return True

    def awaiting_projects(self) -> set[str]:
        """Projects with a promise on capacity that is being freed anyway."""
        return {promise.job.project_id for promise in self.promises.values() if not promise.claim}

    def has_slot(self, request: Request) -> bool:
        """Whether the job needs no slot or may take one: more must be free than its user holds."""
        return not request.on_bastion or self.slots is None or self.slots > self.slots_of[request.user]

    def fits_now(self, request: Request) -> bool:
        return self.has_slot(request) and self.now.fits(request.amounts) and self.later.fits(request.amounts)

    def claim_fits_now(self, job: Job, request: Request) -> bool:
        """Whether a claimant whose promise was undone can start.

        While its victims are stopping it may not use what is kept for others. Once they are gone its part is free, and
        other claims may count on `coming`.
        """
        if job.name in self.leaving_for:
            return self.fits_now(request)
        for resource, amount in request.amounts:
            others = sum(
                units for promise in self.promises.values() for other, units in promise.remainder if other == resource
            )
            if amount > self.physical.free(resource) - max(0, others - self.coming[resource]):
                return False
        return self.has_slot(request) and self.later.fits(request.amounts)

    def start(self, job: Job, request: Request, message: str, *, claimed: bool = False) -> None:
        """Start a job that fits, on its best tier. `message`: why; `claimed`: after `claim_fits_now`."""
        tier = (self.physical if claimed else self.now).best_tier(request.amounts, self.later)
        self.physical.take(request.amounts, tier)
        self.now.take(request.amounts, tier)
        self.later.take(request.amounts, tier)
        self.taken.update(dict(request.amounts))
        self.messages[job.name] = message + self.shares.holding(job.project_id, request.amounts)
        self.shares.hold(job.project_id, request.amounts)
        self._take_slot(request, 1)
        self.starts[job.name] = tier
        if job.scaling:
            self.extra[job.name] = [0] * len(job.scaling)
        self.holders[job.name] = job

    def evict(self, victim: Job, claimant: Job, message: str) -> None:
        """Order a running job to stop. Its units stay taken until its nodes are gone."""
        charged, leaving = amounts_of(victim.charged), victim
        if victim.scaling:  # replicas already being given back are counted
            lasting = Counter(victim.owned)
            lasting.update(dict(units_of(victim, self.extra.pop(victim.name))))
            charged = amounts_of(lasting)
            leaving = as_stopping(victim, charged, claimant.name)
            self.resized.pop(victim.name, None)
        self.later.give_back(charged, self.later.label(victim.tier))
        self.shares.release(victim.project_id, amounts_of(victim.owned))
        self.leaving_for.setdefault(claimant.name, []).append(leaving)
        self.evictions[victim.name] = claimant.name
        self.messages[victim.name] = message
        self._offer_spare(claimant)

    def shrink(self, replica: Replica, claimant: Job, message: str) -> None:
        """Order an elastic job to give a replica back. Its units stay taken until its nodes are gone."""
        job, units = replica.job, replica.units
        self.later.give_back(units, self.later.label(job.tier))
        self.extra[job.name][replica.scaling] -= 1
        self.leaving_for.setdefault(claimant.name, []).append(as_stopping(job, units, claimant.name))
        self.resized[job.name] = claimant.name
        self.messages[job.name] = message
        self._offer_spare(claimant)

    def fits_extra(self, replica: Replica) -> bool:
        """Whether an elastic job that runs or starts can have the replica now, on its own tier."""
        tier = self._tier_of(replica.job)
        available = (
            (self.now.available(resource, tier), self.later.available(resource, tier), amount)
            for resource, amount in replica.units
        )
        return self.now.fits(replica.units) and all(min(now, later) >= amount for now, later, amount in available)

    def _tier_of(self, job: Job) -> int:
        return self.now.label(self.starts.get(job.name, job.tier))

    def grow(self, replica: Replica, message: str) -> None:
        tier = self._tier_of(replica.job)
        for capacity in (self.physical, self.now, self.later):
            capacity.take(replica.units, tier)
        self.taken.update(dict(replica.units))
        self.extra[replica.job.name][replica.scaling] += 1
        if replica.job.name not in self.starts:
            self.resized[replica.job.name] = ""
            self.messages[replica.job.name] = message

    def promise(self, job: Job, request: Request) -> None:
        """Keep capacity for a job that fits `later`."""
        tier = self.later.best_tier(request.amounts, self.later)
        leaving = self.leaving_for.get(job.name, ())
        claim = bool(leaving) or job.promised
        remainders, kept, awaited = [], [], []
        for resource, amount in request.amounts:
            remainder = max(0, amount - sum(victim.charged.get(resource, 0) for victim in leaving))
            # A claim keeps what its victims do not free, because that is free already.
            ours = 0 if claim else max(0, min(remainder, self.unclaimed[resource]))
            self.unclaimed[resource] -= ours
            remainders.append((resource, remainder))
            awaited.append((resource, ours))
            kept.append((resource, remainder - ours))
        self.promises[job.name] = Promise(
            job, claim, tier, request.amounts, tuple(remainders), tuple(kept), tuple(awaited)
        )
        self.later.take(request.amounts, tier)
        self.now.take(tuple(kept), tier)
        self.shares.order(job.project_id, request.amounts)
        self._take_slot(request, 1)

    def unpromise(self, job: Job, request: Request) -> None:
        promise = self.promises.pop(job.name)
        self.unclaimed.update(dict(promise.awaited))
        self.later.give_back(promise.amounts, promise.tier)
        self.now.give_back(promise.kept, promise.tier)
        self.shares.withdraw(job.project_id, request.amounts)
        self._take_slot(request, -1)

    def _take_slot(self, request: Request, count: int) -> None:
        if request.on_bastion and self.slots is not None:
            self.slots -= count
            self.slots_of[request.user] += count


def _limited_lenders(policy: Policy) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for project in policy.projects:
        for resource in policy.rules(project).lending_limit:
            found.setdefault(resource, []).append(project)
    return {resource: tuple(projects) for resource, projects in found.items()}
