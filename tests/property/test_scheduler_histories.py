"""What holds over whole histories: jobs arrive, run, are stopped and end, and every pass on the way is checked.

`tests.support.world` checks in every pass that nothing is over-committed, that nobody is stopped within its share, and
that whoever is within its share runs or has its room ordered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quota import Policy, ProjectRules
from scheduler import (
    Decision,
    Job,
    JobStatus,
    Plan,
    ReasonCode,
    RecentHoldings,
    Snapshot,
    UsageHistory,
    Verdict,
    schedule,
)
from tests.support.world import World

TICK = 30.0
BEGIN = 1_000_000.0
KEEP_IDLE_MAX = 60.0
PROJECTS = ("a", "b", "c")
USERS = ("ann", "bob")
# What the design allows; the scheduler only orders victims by it (`scheduler/decide/victims.py`).
EVICTIONS_MAX = 7
SETTINGS = settings(max_examples=1000 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 40, deadline=None)


@dataclass(frozen=True, slots=True)
class History:
    """What comes from outside.

    Attributes:
        arrivals: Jobs with the ticks since the one before, and the ticks that they run.
        stopping: Ticks that an eviction takes.
    """

    policy: Policy
    arrivals: tuple[tuple[int, Job, int], ...]
    stopping: int
    slots: int | None

    def world(self) -> World:
        return World(self.policy, BEGIN, lambda job: self.stopping * TICK)


@st.composite
def policies(draw: st.DrawFn, kinds: tuple[str, ...], rules: bool) -> Policy:
    tiers = draw(
        st.lists(st.fixed_dictionaries({kind: st.sampled_from((8, 16, 33)) for kind in kinds}), min_size=1, max_size=2)
    )
    weights = {project: {kind: draw(st.sampled_from((0.0, 1.0, 3.0))) for kind in kinds} for project in PROJECTS}
    limits: st.SearchStrategy[dict[str, int]] = st.one_of(
        st.just({}), st.fixed_dictionaries({kind: st.sampled_from((0, 4, 16)) for kind in kinds})
    )
    by_project = {
        project: ProjectRules(
            keep_idle_seconds=draw(st.sampled_from((0.0, KEEP_IDLE_MAX))),
            fifo=rules and draw(st.booleans()),
            borrowing_limit=draw(limits) if rules else {},
            lending_limit=draw(limits) if rules else {},
            minimum_runtime_seconds=draw(st.sampled_from((0.0, 120.0))),
        )
        for project in PROJECTS
    }
    return Policy(tiers=tuple(tiers), weights=weights, members={}, project_rules=by_project)


@st.composite
def histories(
    draw: st.DrawFn, *, kinds: tuple[str, ...] = ("v4",), rules: bool = False, slots: bool = False
) -> History:
    arrivals = []
    at = 0
    for index in range(draw(st.integers(1, 14))):
        at += draw(st.sampled_from((0, 0, 1, 4)))
        demand = draw(
            st.dictionaries(st.sampled_from(kinds), st.sampled_from((1, 2, 4, 8, 16)), min_size=1, max_size=len(kinds))
        )
        on_bastion = slots and draw(st.integers(0, 3)) == 0
        job = Job(
            name=f"j{index:02}",
            project_id=draw(st.sampled_from(PROJECTS)),
            user_id=draw(st.sampled_from(USERS)),
            priority=draw(st.sampled_from((1, 5, 5))),
            queued_at=BEGIN + at * TICK + index / 100,
            demand={} if on_bastion else demand,
            on_bastion=on_bastion,
        )
        arrivals.append((at, job, draw(st.sampled_from((1, 3, 10, 40)))))
    return History(
        policy=draw(policies(kinds, rules)),
        arrivals=tuple(arrivals),
        stopping=draw(st.integers(0, 3)),
        slots=draw(st.sampled_from((None, 1, 2))) if slots else None,
    )


def play(history: History, ticks: int = 600) -> World:
    """All of it, until nobody runs any more, and nobody has started for as long as anything is kept for anybody."""
    world, recent, usage = history.world(), RecentHoldings(), UsageHistory()
    arrivals, quiet = list(history.arrivals), 0
    for tick in range(ticks):
        world.advance(BEGIN + tick * TICK)
        while arrivals and arrivals[0][0] <= tick:
            _, job, runs = arrivals.pop(0)
            world.submit(job, seconds=runs * TICK)
        world.decide(
            check_membership=False,
            bastion_slots=history.slots,
            held_recently=recent.note(world.jobs.values(), world.now, history.policy),
            user_usage=usage.note(world.jobs.values(), world.now, history.policy),
        )
        idle = all(job.status is JobStatus.PENDING for job in world.jobs.values())
        quiet = quiet + 1 if idle and not arrivals else 0
        if quiet > KEEP_IDLE_MAX / TICK + 1:
            return world
    raise AssertionError(f"still going on after {ticks} ticks: {world.evicted_for}")


def could_ever_run(policy: Policy, job: Job) -> bool:
    return all(amount <= policy.ceiling(job.project_id, kind) for kind, amount in job.demand.items())


def assert_settled(history: History, world: World) -> None:
    """Who can run has ended, and nobody was stopped too often."""
    left = {name for name, job in world.jobs.items() if could_ever_run(history.policy, job)}
    assert not left, f"never ended: {left}"
    assert max(world.evictions.values(), default=0) <= EVICTIONS_MAX
    # No day passes, so nobody is recalled; and no owner has the same job stopped twice.
    assert max(Counter(world.evicted_for).values(), default=0) <= 1


@SETTINGS
@given(histories())
def test_shares_are_kept_and_everybody_ends_without_being_stopped_often(history: History) -> None:
    assert_settled(history, play(history))


@SETTINGS
@given(histories(kinds=("v4", "v5e")))
def test_the_same_holds_for_jobs_of_several_types(history: History) -> None:
    assert_settled(history, play(history))


@SETTINGS
@given(histories(rules=True, slots=True))
def test_the_same_holds_under_limits_strict_order_and_slots(history: History) -> None:
    assert_settled(history, play(history))


def passes(history: History, ticks: int = 30) -> Iterator[tuple[float, Snapshot]]:
    """Each tick's instant, and everything that its pass may know."""
    world, recent, usage = history.world(), RecentHoldings(), UsageHistory()
    for tick in range(ticks):
        world.advance(BEGIN + tick * TICK)
        for at, job, runs in history.arrivals:
            if at == tick:
                world.submit(job, seconds=runs * TICK)
        held = recent.note(world.jobs.values(), world.now, history.policy)
        used = usage.note(world.jobs.values(), world.now, history.policy)
        yield (
            world.now,
            Snapshot(
                policy=history.policy,
                jobs=tuple(world.jobs.values()),
                bastion_slots=history.slots,
                check_membership=False,
                held_recently=held,
                user_usage=used,
            ),
        )
        world.decide(check_membership=False, bastion_slots=history.slots, held_recently=held, user_usage=used)


@SETTINGS
@given(histories(rules=True))
def test_a_job_that_only_its_pause_keeps_waiting_starts_when_it_is_over(history: History) -> None:
    for now, snapshot in passes(history, 12):
        for name in [job.name for job in snapshot.jobs if job.status is JobStatus.PENDING and not job.promised]:
            jobs = (replace(job, not_before=now + 300.0) if job.name == name else job for job in snapshot.jobs)
            paused = replace(snapshot, jobs=tuple(jobs))
            plan = schedule(paused, now)
            if headline(plan, name) is ReasonCode.BACKOFF:
                later = schedule(carried_out(paused, plan, now), now + 300.0)
                assert decision_on(later, name).verdict is Verdict.START


@SETTINGS
@given(histories(slots=True))
def test_as_many_more_slots_as_a_job_is_told_it_waits_for_start_it(history: History) -> None:
    for now, snapshot in passes(history, 12):
        plan = schedule(snapshot, now)
        after = carried_out(snapshot, plan, now)
        for job in snapshot.jobs:
            found = decision_on(plan, job.name)
            if job.on_bastion and found.position is not None and found.reason is not None:
                assert found.reason.slots > 0
                more = replace(after, bastion_slots=(history.slots or 0) + found.reason.slots)
                assert decision_on(schedule(more, now), job.name).verdict is Verdict.START


def decision_on(plan: Plan, name: str) -> Decision:
    (found,) = [decision for decision in plan.decisions if decision.name == name]
    return found


def headline(plan: Plan, name: str) -> ReasonCode | None:
    reason = decision_on(plan, name).reason
    return reason.code if reason is not None else None


def carried_out(snapshot: Snapshot, plan: Plan, now: float) -> Snapshot:
    """The next pass's snapshot if nothing else happens."""
    jobs = {job.name: job for job in snapshot.jobs}
    for decision in plan.decisions:
        job = jobs[decision.name]
        if decision.verdict is Verdict.START:
            job = replace(
                job, status=JobStatus.RUNNING, tier=decision.tier, charged=job.demand, started_at=now, promised=False
            )
        elif decision.verdict is Verdict.EVICT:
            job = replace(job, status=JobStatus.STOPPING, evicted_for=decision.evicted_for)
        elif decision.reason is not None:
            job = replace(job, promised=decision.reason.code is ReasonCode.WAITING_FOR_PREEMPTED)
        jobs[job.name] = job
    return replace(snapshot, jobs=tuple(jobs.values()))


def turned_round(snapshot: Snapshot) -> Snapshot:
    """The same with every mapping and the jobs the other way round."""
    policy = snapshot.policy
    assert policy is not None

    def back(mapping: Mapping[str, Any]) -> dict[str, Any]:
        entries = reversed(list(mapping.items()))
        return {key: back(value) if isinstance(value, Mapping) else value for key, value in entries}

    return replace(
        snapshot,
        jobs=tuple(replace(job, demand=back(job.demand), charged=back(job.charged)) for job in reversed(snapshot.jobs)),
        policy=Policy(
            tiers=tuple(back(tier) for tier in policy.tiers),
            weights=back(policy.weights),
            members={},
            project_rules=back(policy.project_rules),
        ),
        held_recently=back(snapshot.held_recently),
        user_usage=back(snapshot.user_usage),
    )


@SETTINGS
@given(histories(kinds=("v4", "v5e"), rules=True, slots=True))
def test_no_order_of_anything_changes_a_byte_of_the_plan(history: History) -> None:
    for now, snapshot in passes(history, 12):
        assert schedule(turned_round(snapshot), now).to_json() == schedule(snapshot, now).to_json()


# Prints a digest of the plans of a hundred snapshots whose names meet in sets and mappings.
_DIGEST = """
import hashlib, random
from quota import Policy, ProjectRules
from scheduler import Decision, Job, JobStatus, Snapshot, schedule
digest = hashlib.sha256()
for seed in range(100):
    rng = random.Random(seed)
    projects = [f"p{n}" for n in range(5)]
    kinds = ["v4", "v5e", "v6e"]
    policy = Policy(
        tiers=({kind: 32 for kind in kinds}, {kind: 16 for kind in kinds}),
        weights={project: {kind: rng.choice((0.0, 1.0, 2.0)) for kind in kinds} for project in projects},
        members={},
        project_rules={"p1": ProjectRules(lending_limit={"v4": 2, "v5e": 2}), "p2": ProjectRules(fifo=True)},
    )
    jobs = []
    for n in range(30):
        status = rng.choice(list(JobStatus))
        demand = {kind: rng.choice((1, 2, 4, 8)) for kind in rng.sample(kinds, rng.randint(1, 3))}
        runs = status is not JobStatus.PENDING
        jobs.append(Job(
            name=f"j{n}", project_id=rng.choice(projects), user_id=rng.choice("uvw"),
            queued_at=float(rng.randint(0, 9)), demand=demand, status=status,
            tier=0 if runs else None, charged=demand if runs else {},
            started_at=5.0 if runs else None, promised=not runs and rng.random() < 0.2,
            evicted_for=f"j{rng.randint(0, 29)}" if status is JobStatus.STOPPING else None,
        ))
    recently = {project: {"v4": ((300000.0, rng.randint(1, 9)),)} for project in projects}
    snapshot = Snapshot(policy=policy, jobs=tuple(jobs), check_membership=False, held_recently=recently)
    digest.update(schedule(snapshot, 200000.0).to_json())
print(digest.hexdigest())
"""


def test_another_process_makes_the_same_plans_to_the_byte() -> None:
    """Sets of strings are walked in another order in each process."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
