"""What every plan promises, whatever the snapshot."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler import Job, JobStatus, ReasonCode, Snapshot, Verdict, schedule
from tests.property.scheduler_snapshots import (
    NOW,
    PROJECTS,
    SETTINGS,
    USER,
    carried_out,
    code,
    decisions,
    is_allowed,
    policy_of,
    snapshots,
)

NO_CAPACITY_HELPS = {
    ReasonCode.NOT_ALLOWED,
    ReasonCode.HELD,
    ReasonCode.EXCEEDS_POOL,
    ReasonCode.EXCEEDS_PROJECT_MAX,
}


@SETTINGS
@given(snapshots())
def test_every_job_gets_one_decision_that_suits_its_status(snapshot: Snapshot) -> None:
    plan = schedule(snapshot, NOW)
    assert len(plan.decisions) == len(snapshot.jobs)
    allowed = {
        JobStatus.PENDING: {Verdict.START, Verdict.WAIT},
        JobStatus.RUNNING: {Verdict.KEEP, Verdict.EVICT},
        JobStatus.STOPPING: {Verdict.STOPPING},
    }
    decided = decisions(plan)
    for job in snapshot.jobs:
        decision = decided[job.name]
        assert decision.verdict in allowed[job.status]
        assert (decision.reason is not None) == (decision.verdict is Verdict.WAIT)
        if decision.reason is not None:
            assert decision.reason.message and decision.reason.unblock
            assert decision.reason.code not in decision.reason.also
            order = list(ReasonCode)
            ranks = [order.index(code) for code in (decision.reason.code, *decision.reason.also)]
            assert ranks == sorted(ranks)


@SETTINGS
@given(snapshots())
def test_nothing_is_over_committed_on_any_tier(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    decided = decisions(schedule(snapshot, NOW))
    last = len(snapshot.policy.tiers) - 1
    for kind in snapshot.policy.resource_types:
        for tier in range(last + 1):
            limit = sum(snapshot.policy.tiers[index].get(kind, 0) for index in range(tier + 1))
            held = sum(
                job.charged.get(kind, 0)
                for job in snapshot.jobs
                if job.status is not JobStatus.PENDING and min(job.tier or 0, last) <= tier
            )
            started = sum(
                job.demand.get(kind, 0)
                for job in snapshot.jobs
                if decided[job.name].verdict is Verdict.START and (decided[job.name].tier or 0) <= tier
            )
            assert started == 0 or held + started <= limit


@SETTINGS
@given(snapshots())
def test_the_bastion_never_runs_more_jobs_than_it_has_slots(snapshot: Snapshot) -> None:
    decided = decisions(schedule(snapshot, NOW))
    if snapshot.bastion_slots is not None:
        own = [job for job in snapshot.jobs if job.on_bastion]
        held = sum(job.status is not JobStatus.PENDING for job in own)
        started = sum(decided[job.name].verdict is Verdict.START for job in own)
        assert started == 0 or held + started <= snapshot.bastion_slots


@SETTINGS
@given(snapshots())
def test_no_project_starts_jobs_beyond_its_ceiling(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    decided = decisions(schedule(snapshot, NOW))
    for project, kind in itertools.product(PROJECTS, snapshot.policy.resource_types):
        own = [job for job in snapshot.jobs if job.project_id == project]
        running = sum(job.charged.get(kind, 0) for job in own if decided[job.name].verdict is Verdict.KEEP)
        started = sum(job.demand.get(kind, 0) for job in own if decided[job.name].verdict is Verdict.START)
        assert not started or running + started <= snapshot.policy.ceiling(project, kind)


@SETTINGS
@given(snapshots(claims=False))
def test_what_is_lent_leaves_free_what_other_projects_never_lend(snapshot: Snapshot) -> None:
    """Unless an owner took it: entitlements come first, and borrowers that were there before stay."""
    assert snapshot.policy is not None
    policy, decided = snapshot.policy, decisions(schedule(snapshot, NOW))

    def holds(project: str, kind: str) -> int:
        """What it has after the plan, room that is being made for its jobs included."""
        return sum(
            job.demand.get(kind, 0)
            for job in snapshot.jobs
            if job.project_id == project
            and (
                decided[job.name].verdict in (Verdict.KEEP, Verdict.START)
                or code(decided[job.name]) is ReasonCode.WAITING_FOR_PREEMPTED
                or "is being freed by" in (decided[job.name].reason.message if decided[job.name].reason else "")  # type: ignore[union-attr]
            )
        )

    for borrower in snapshot.jobs:
        if "borrows idle capacity" not in decided[borrower.name].message:
            continue
        for kind, amount in borrower.demand.items():
            if not amount or policy.total(kind) < amount:
                continue
            used = sum(holds(project, kind) for project in PROJECTS)
            unlent = 0
            for project in PROJECTS:
                limit = policy.rules(project).lending_limit.get(kind)
                if project != borrower.project_id and limit is not None:
                    unlent += max(0, policy.entitlement(project, kind) - holds(project, kind) - limit)
            assert used + unlent <= policy.total(kind)


@SETTINGS
@given(snapshots())
def test_where_nobody_passes_only_the_jobs_in_front_start(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    plan = schedule(snapshot, NOW)
    decided = decisions(plan)
    for project in PROJECTS:
        rules = snapshot.policy.rules(project)
        if not rules.fifo:
            continue
        usage = snapshot.user_usage.get(project, {})
        line = sorted(
            (job for job in snapshot.jobs if job.project_id == project and job.status is JobStatus.PENDING),
            key=lambda job: (
                job.priority,
                usage.get(job.user_id, 0.0) / rules.user_weight(job.user_id),
                job.queued_at,
                job.name,
            ),
        )
        waits = False
        for job in line:
            decision = decided[job.name]
            if decision.verdict is Verdict.START:
                assert not waits or job.promised or "the capacity reserved for it is free" in decision.message
            elif code(decision) not in NO_CAPACITY_HELPS:
                if waits and code(decision) is not ReasonCode.WAITING_FOR_PREEMPTED:
                    assert (
                        code(decision) is ReasonCode.BEHIND_HIGHER_PRIORITY
                        or job.not_before
                        or "freed" in (decision.reason.message if decision.reason else "")
                    )
                waits = True


@SETTINGS
@given(snapshots())
def test_only_projects_above_their_entitlement_lose_jobs(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    decided, named = decisions(schedule(snapshot, NOW)), {job.name: job for job in snapshot.jobs}
    evicted = [job for job in snapshot.jobs if decided[job.name].verdict is Verdict.EVICT]
    for victim in evicted:
        claimant = named[decided[victim.name].evicted_for or ""]
        if claimant.project_id == victim.project_id and claimant.priority < victim.priority:
            continue  # a higher priority of its own project
        others = [job for job in evicted if job.project_id == victim.project_id and job != victim]

        def over_without(gone: list[Job], victim: Job = victim) -> bool:
            return any(
                sum(
                    job.charged.get(kind, 0)
                    for job in snapshot.jobs
                    if job.status is JobStatus.RUNNING and job.project_id == victim.project_id and job not in gone
                )
                > snapshot.policy.entitlement(victim.project_id, kind)  # type: ignore[union-attr]
                for kind in victim.charged
            )

        # In some order of eviction every victim's project was above its entitlement just before.
        assert over_without([])
        assert any(over_without([job for job in others if job != last]) for last in others) or not others


@SETTINGS
@given(snapshots())
def test_evictions_are_enough_for_their_claimant_and_none_is_spare(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    plan = schedule(snapshot, NOW)
    decided = decisions(plan)
    claims: dict[str, list[Job]] = {}
    for job in snapshot.jobs:
        if decided[job.name].verdict is Verdict.EVICT:
            claims.setdefault(decided[job.name].evicted_for or "", []).append(job)
    for claimant, victims in claims.items():
        decision = decided[claimant]
        if decision.verdict is Verdict.START:  # only its own project's share was in the way
            continue
        assert code(decision) is ReasonCode.WAITING_FOR_PREEMPTED
        assert decision.reason is not None and {victim.name for victim in victims} <= set(decision.reason.holders)
    # Once everything that stops is gone, every claimant starts.
    after = carried_out(snapshot, plan)
    gone = replace(after, jobs=tuple(job for job in after.jobs if job.status is not JobStatus.STOPPING))
    started = decisions(schedule(gone, NOW))
    for claimant in claims:
        assert started[claimant].verdict in (Verdict.START, Verdict.KEEP)


@SETTINGS
@given(snapshots())
def test_a_waiting_job_is_not_allowed_exactly_where_its_projects_rules_say_so(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    decided = decisions(schedule(snapshot, NOW))
    for job in snapshot.jobs:
        if job.status is JobStatus.PENDING:
            assert (code(decided[job.name]) is ReasonCode.NOT_ALLOWED) == (not is_allowed(snapshot.policy, job))
        else:
            assert decided[job.name].reason is None


@SETTINGS
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(snapshot: Snapshot, random: st.DataObject) -> None:
    shuffled = list(snapshot.jobs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert schedule(replace(snapshot, jobs=tuple(shuffled)), NOW).to_json() == schedule(snapshot, NOW).to_json()


@SETTINGS
@given(snapshots())
def test_a_second_pass_over_the_outcome_changes_nothing(snapshot: Snapshot) -> None:
    first = schedule(snapshot, NOW)
    second = decisions(schedule(carried_out(snapshot, first), NOW))
    same = {Verdict.START: Verdict.KEEP, Verdict.EVICT: Verdict.STOPPING}
    for decision in first.decisions:
        again = second[decision.name]
        assert again.verdict is same.get(decision.verdict, decision.verdict)
        assert code(again) is code(decision)
        assert again.evicted_for == decision.evicted_for


@SETTINGS
@given(snapshots(kinds=("v4",), claims=False, slots=False, backoff=False))
def test_an_owner_within_its_entitlement_starts_or_gets_room_in_the_same_pass(snapshot: Snapshot) -> None:
    assert snapshot.policy is not None
    plan = schedule(snapshot, NOW)
    decided = decisions(plan)
    committed = dict.fromkeys(PROJECTS, 0)
    left_out = []
    for job in snapshot.jobs:
        decision = decided[job.name]
        gets_room = decision.reason is not None and (
            decision.reason.code is ReasonCode.WAITING_FOR_PREEMPTED or "is being freed by" in decision.reason.message
        )
        if decision.verdict in (Verdict.KEEP, Verdict.START) or gets_room:
            committed[job.project_id] += job.demand.get("v4", 0)
        elif job.status is JobStatus.PENDING:
            left_out.append(job)
    for job in left_out:
        rules = snapshot.policy.rules(job.project_id)
        if rules.hold or rules.fifo or not is_allowed(snapshot.policy, job):
            continue  # it does not ask, or may not: the one in front does
        entitlement = snapshot.policy.entitlement(job.project_id, "v4")
        assert committed[job.project_id] + job.demand.get("v4", 0) > entitlement


@st.composite
def borrowed_pools(draw: st.DrawFn) -> Snapshot:
    """A pool of 64 that project b, entitled to a quarter, has mostly borrowed, when a job of project a arrives."""
    sizes = draw(st.lists(st.sampled_from((1, 4, 8, 16, 24)), min_size=3, max_size=10))
    while sum(sizes) > 64:
        sizes.pop()
    running = tuple(
        Job(
            name=f"r{index}",
            project_id="b",
            user_id=USER,
            queued_at=float(index),
            demand={"v4": size},
            status=JobStatus.RUNNING,
            tier=0,
            charged={"v4": size},
            started_at=float(draw(st.integers(100, 9_000))),
        )
        for index, size in enumerate(sizes)
    )
    waiting = tuple(
        Job(
            name=f"w{index}",
            project_id=draw(st.sampled_from(("b", "c"))),
            user_id=USER,
            queued_at=float(index),
            demand={"v4": draw(st.sampled_from((1, 8, 24, 48)))},
        )
        for index in range(draw(st.integers(0, 3)))
    )
    claimant = Job(
        name="claimant", project_id="a", user_id=USER, queued_at=50.0, demand={"v4": draw(st.sampled_from((4, 16, 30)))}
    )
    policy = policy_of(({"v4": 64},), {"a": {"v4": 2.0}, "b": {"v4": 1.0}, "c": {"v4": 1.0}})
    return Snapshot(policy=policy, jobs=(*running, *waiting, claimant))


@SETTINGS
@given(
    borrowed_pools(), st.lists(st.tuples(st.sampled_from(PROJECTS), st.sampled_from((1, 4, 16))), max_size=4), st.data()
)
def test_no_third_job_takes_what_was_freed_for_a_claimant(
    snapshot: Snapshot, arrivals: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Whatever is submitted meanwhile, the claimant starts as soon as the last of its victims is gone."""
    plan = schedule(snapshot, NOW)
    claims = [d.name for d in plan.decisions if code(d) is ReasonCode.WAITING_FOR_PREEMPTED]
    assume(claims == ["claimant"])  # one claim may count on what another's victims have to spare
    current = carried_out(snapshot, plan)
    for passed_at in itertools.count(NOW + 1):
        if arrivals:
            project, size = arrivals.pop()
            arrival = Job(
                name=f"z{len(arrivals)}",
                project_id=project,
                user_id=USER,
                priority=1,
                queued_at=-1.0,
                demand={"v4": size},
            )
            current = replace(current, jobs=(*current.jobs, arrival))
        own = [job.name for job in current.jobs if job.status is JobStatus.STOPPING and job.evicted_for == "claimant"]
        plan = schedule(current, passed_at)
        if not own or decisions(plan)["claimant"].verdict is Verdict.START:
            break
        current = carried_out(current, plan, passed_at)
        gone = data.draw(st.sampled_from(own))
        current = replace(current, jobs=tuple(job for job in current.jobs if job.name != gone))
    assert decisions(plan)["claimant"].verdict is Verdict.START
