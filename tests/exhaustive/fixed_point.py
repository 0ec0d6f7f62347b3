"""Runs one small instance to its fixed point, every pass checked (`tests.support.world.broken_promises`)."""

from __future__ import annotations

from functools import cache

from quota import Policy, ProjectRules
from scheduler import Job, JobStatus, Verdict
from scheduler.simulation.simulator import NEVER
from tests.exhaustive.instances import KIND, POOL, PROJECTS, Gap, Instance, Shares
from tests.support.world import World

TICK = 30.0
BEGIN = 1_000_000.0
# Of the recall: a job may have room made for it after a day, and a gang that no share covers again after a pause.
DAY = 24 * 3600.0
PAUSE = 1800.0
# More passes than any instance needs to come to rest; more recalls than any has.
PASSES_MAX = 60
RECALLS_MAX = 12


class NeverAtRest(AssertionError):
    """An instance goes on and on."""


@cache
def policy_of(shares: Shares) -> Policy:
    return Policy(
        tiers=({KIND: POOL},),
        weights={project: {KIND: float(share)} for project, share in zip(PROJECTS, shares, strict=True)},
        members={},
        default_rules=ProjectRules(keep_idle_seconds=0.0),
    )


def begin(instance: Instance) -> World:
    """An empty pool."""
    return World(policy_of(instance.shares), BEGIN, lambda job: instance.stopping * TICK)


def play(instance: Instance) -> World:
    """All jobs arrive, and the pool comes to rest; then days pass, until no recall is to be expected any more.

    Raises:
        AssertionError: a plan did what none may do, or there is no fixed point.
    """
    world = begin(instance)
    for index, (project, size) in enumerate(instance.wishes):
        if index and instance.gap is Gap.TICK:
            if not step(world):
                world.advance(world.now + TICK)
        elif index and instance.gap is Gap.REST:
            come_to_rest(world)
            world.advance(world.now + TICK)
        job = Job(
            name=f"j{index}", project_id=project, user_id="u", queued_at=world.now + index / 8, demand={KIND: size}
        )
        world.submit(job, seconds=instance.lengths[index] * TICK if instance.lengths else NEVER)
    come_to_rest(world)
    pass_the_days(world)
    return world


def step(world: World) -> bool:
    """One tick: a pass, again if an eviction takes no time, and on to the next tick; whether it changed anything."""
    changed = False
    while True:
        plan = world.decide(check_membership=False)
        moves = {decision.verdict for decision in plan.decisions} & {Verdict.START, Verdict.EVICT}
        changed = changed or bool(moves)
        if world.next_change() > world.now:
            break
        world.advance(world.now)
    moving = changed or world.next_change() < NEVER
    if moving:
        world.advance(world.now + TICK)
    return moving


def come_to_rest(world: World) -> None:
    """Ticks until nothing starts, stops or ends any more."""
    for _ in range(PASSES_MAX):
        if not step(world):
            check_rest(world)
            return
    raise NeverAtRest(f"still moving after {PASSES_MAX} ticks: {world.evicted_for}")


def pass_the_days(world: World) -> None:
    """On from rest to rest, at every instant at which a recall becomes possible."""
    for _ in range(RECALLS_MAX):
        moment = next_recall(world)
        if moment is None:
            return
        world.advance(moment)
        come_to_rest(world)
    raise NeverAtRest(f"still recalling after {RECALLS_MAX} recalls: {world.evicted_for}")


def next_recall(world: World) -> float | None:
    """When the next waiting job becomes overdue."""
    moments = []
    for job in world.jobs.values():
        if job.status is not JobStatus.PENDING:
            continue
        moment = job.queued_at + DAY
        if job.evictions:
            assert world.policy is not None
            if job.demand[KIND] <= world.policy.entitlement(job.project_id, KIND):
                continue
            moment = max(moment, (job.evicted_at or 0.0) + PAUSE * 2**job.futile_evictions)
        if moment > world.now:
            moments.append(moment)
    return min(moments, default=None)


def check_rest(world: World) -> None:
    """What holds when nothing moves: nothing is idle that somebody could use, and every share is kept."""
    policy = world.policy
    assert policy is not None
    held = dict.fromkeys(PROJECTS, 0)
    waiting = []
    for job in world.jobs.values():
        assert job.status is not JobStatus.STOPPING
        if job.status is JobStatus.RUNNING:
            held[job.project_id] += job.charged[KIND]
        else:
            waiting.append(job)
    free = POOL - sum(held.values())
    for job in waiting:
        size = job.demand[KIND]
        assert size > free, f"{job.name} could start: {free} are free"
        owed = size <= policy.entitlement(job.project_id, KIND) - held[job.project_id]
        assert not owed, f"{job.name} of {job.project_id} is within its share and waits"
    assert not world.waiting.promised, "somebody waits for an eviction, and nobody stops"
