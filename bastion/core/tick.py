"""The decision of one tick: from everything observed to everything to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bastion.core.model.world import World
from bastion.core.reconcile.effects import Effect
from bastion.core.reconcile.reconciler import reconcile
from bastion.core.reconcile.sweep import sweep
from scheduler import Plan, Scheduler, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TickInput:
    """Everything that a tick's decision depends on."""

    number: int  # of the tick, from 1, of this daemon
    now: float  # seconds since the epoch, by the daemon's steady time
    server_time: float  # the same by the bucket's clock, up to a lease renewal old
    world: World
    snapshot: Snapshot  # the jobs of the world as the scheduler sees them, with what it remembers of earlier ticks
    ownerless_since: Mapping[str, int] = field(default_factory=dict)  # `TickOutput.ownerless_since` of the tick before


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOutput:
    """What a tick decides."""

    plan: Plan  # a decision for every job
    effects: Mapping[str, list[Effect]]  # by job, and by swept thing: what to do, in this order
    ownerless_since: Mapping[str, int]  # by thing without an owner, the number of the tick since which it has had none


def decide(given: TickInput, scheduler: Scheduler | None = None) -> TickOutput:
    """Decide one tick. The same input gives the same output.

    A `scheduler` that remembers the last pass is faster and decides the same.
    """
    plan = (scheduler or Scheduler()).schedule(given.snapshot, given.now)
    effects = reconcile(given.world, plan, given.now)
    if given.world.dry_run:
        return TickOutput(plan=plan, effects=effects, ownerless_since=given.ownerless_since)
    swept = sweep(
        given.world,
        since=given.ownerless_since,
        tick=given.number,
        now=given.now,
        server_time=given.server_time,
    )
    return TickOutput(plan=plan, effects={**swept.effects, **effects}, ownerless_since=swept.ownerless_since)
