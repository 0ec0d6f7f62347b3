"""What every plan promises, whatever the snapshot."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quota import Policy, ProjectRules
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict, schedule

NOW = 10_000.0
PROJECTS = ("a", "b", "c")
USER = "u"
OTHER_USER = "w"
COMPETING = {ReasonCode.WAITING_FOR_POOL, ReasonCode.WAITING_FOR_PROJECT_SHARE, ReasonCode.BEHIND_HIGHER_PRIORITY}

settings.register_profile(
    "scheduler", max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
SETTINGS = settings.get_profile("scheduler")


def policy_of(
    tiers: tuple[dict[str, int], ...],
    weights: dict[str, dict[str, float]],
    rules: dict[str, ProjectRules] | None = None,
) -> Policy:
    return Policy(
        tiers=tiers, weights=weights, members=dict.fromkeys(PROJECTS, (USER, OTHER_USER)), project_rules=rules or {}
    )


@st.composite
def project_rules(draw: st.DrawFn, kinds: tuple[str, ...]) -> ProjectRules:
    limits = st.dictionaries(st.sampled_from(kinds), st.sampled_from((0, 4, 8, 24)), max_size=len(kinds))
    return ProjectRules(
        fifo=draw(st.integers(0, 2)) == 0,
        hold=draw(st.integers(0, 7)) == 0,
        borrowing_limit=draw(st.one_of(st.just({}), limits)),
        lending_limit=draw(st.one_of(st.just({}), limits)),
        user_weights={OTHER_USER: 3.0},
    )


@st.composite
def policies(draw: st.DrawFn, kinds: tuple[str, ...] = ("v4", "v5e")) -> Policy:
    tiers = draw(
        st.lists(
            st.fixed_dictionaries({kind: st.sampled_from((0, 8, 16, 33, 64)) for kind in kinds}), min_size=1, max_size=3
        )
    )
    weights = {project: {kind: draw(st.sampled_from((0.0, 0.2, 1.0, 3.0))) for kind in kinds} for project in PROJECTS}
    rules = {project: draw(project_rules(kinds)) for project in PROJECTS} if draw(st.booleans()) else {}
    return policy_of(tuple(tiers), weights, rules)


def demands(kinds: tuple[str, ...]) -> st.SearchStrategy[dict[str, int]]:
    return st.dictionaries(st.sampled_from(kinds), st.sampled_from((1, 4, 8, 16, 24, 48)), max_size=len(kinds))


@st.composite
def snapshots(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = ("v4", "v5e"),
    overfull: bool = True,
    claims: bool = True,
    backoff: bool = True,
    slots: bool = True,
) -> Snapshot:
    """Snapshots with incumbents that may exceed the pool (`overfull`), and with promises in flight (`claims`)."""
    policy = draw(policies(kinds))
    count = draw(st.integers(0, 14))
    room = {kind: policy.total(kind) for kind in kinds}
    jobs = []
    for index in range(count):
        demand = draw(demands(kinds))
        status = draw(st.sampled_from(JobStatus))
        if not overfull and any(room[kind] < amount for kind, amount in demand.items()):
            status = JobStatus.PENDING
        holds = status is not JobStatus.PENDING
        if holds:
            for kind, amount in demand.items():
                room[kind] -= amount
        jobs.append(
            Job(
                name=f"j{index:02}",
                project_id=draw(st.sampled_from(PROJECTS)),
                user_id=draw(st.sampled_from((USER, USER, OTHER_USER))),
                priority=draw(st.sampled_from((1, 5))),
                queued_at=float(draw(st.integers(0, 20))),
                demand=demand,
                status=status,
                tier=draw(st.integers(0, 2)) if holds else None,
                charged=demand if holds else {},
                started_at=float(draw(st.integers(100, 9_000))) if holds else None,
                not_before=draw(st.sampled_from((None, None, NOW - 1, NOW + 60))) if backoff and not holds else None,
                evicted_for=f"j{draw(st.integers(0, count)):02}"
                if claims and status is JobStatus.STOPPING and draw(st.booleans())
                else None,
                on_bastion=slots and draw(st.integers(0, 4)) == 0,
                promised=claims and not holds and draw(st.integers(0, 5)) == 0,
            )
        )
    used = st.fixed_dictionaries({user: st.sampled_from((0.0, 10.0, 25.0)) for user in (USER, OTHER_USER)})
    return Snapshot(
        policy=policy,
        jobs=tuple(jobs),
        bastion_slots=draw(st.sampled_from((None, 1, 3))),
        user_usage=draw(st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys(PROJECTS, used)))),
    )


def decisions(plan: Plan) -> dict[str, Decision]:
    return {decision.name: decision for decision in plan.decisions}


def code(decision: Decision) -> ReasonCode | None:
    return decision.reason.code if decision.reason else None


def carried_out(snapshot: Snapshot, plan: Plan, passed_at: float = NOW) -> Snapshot:
    """The snapshot of the next pass if nothing else happens and nothing has stopped yet."""
    decided = decisions(plan)

    def next_of(job: Job) -> Job:
        decision = decided[job.name]
        match decision.verdict:
            case Verdict.START:
                return replace(
                    job,
                    status=JobStatus.RUNNING,
                    tier=decision.tier,
                    charged=job.demand,
                    started_at=NOW,
                    promised=False,
                )
            case Verdict.EVICT:
                return replace(job, status=JobStatus.STOPPING, evicted_for=decision.evicted_for)
            case Verdict.WAIT:
                promised = code(decision) is ReasonCode.WAITING_FOR_PREEMPTED
                since = job.waiting_since if promised == job.promised else passed_at
                return replace(job, promised=promised, waiting_since=since)
            case _:
                return job

    return replace(snapshot, jobs=tuple(next_of(job) for job in snapshot.jobs))


def with_limit_raised(policy: Policy, project: str, over: dict[str, int]) -> Policy:
    """The project may borrow so much more."""
    rules = policy.rules(project)
    limit = {kind: amount + over.get(kind, 0) for kind, amount in rules.borrowing_limit.items()}
    return replace(policy, project_rules={**policy.project_rules, project: rules.evolve(borrowing_limit=limit)})


def with_more_free(policy: Policy, missing: dict[str, int]) -> Policy:
    """So much more capacity, and everybody's entitlement as before: a project without jobs is given the rest."""
    totals = {kind: policy.total(kind) + missing.get(kind, 0) for kind in policy.resource_types}
    weights: dict[str, dict[str, float]] = {
        project: {kind: float(policy.entitlement(project, kind)) for kind in policy.resource_types}
        for project in policy.projects
    }
    weights["nobody"] = {
        kind: float(total - sum(policy.entitlement(project, kind) for project in policy.projects))
        for kind, total in totals.items()
    }
    *first, last = (dict(tier) for tier in policy.tiers)
    for kind, amount in missing.items():
        last[kind] = last.get(kind, 0) + amount
    more = Policy(tiers=(*first, last), weights=weights, members=policy.members, project_rules=policy.project_rules)
    for project in policy.projects:
        for kind in policy.resource_types:
            assert more.entitlement(project, kind) == policy.entitlement(project, kind)
    return more


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
                assert not waits or job.promised or "the room ordered for it" in decision.message
            elif code(decision) not in (ReasonCode.HELD, ReasonCode.EXCEEDS_POOL, ReasonCode.EXCEEDS_PROJECT_MAX):
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
        if rules.hold or rules.fifo:
            continue  # it does not ask, or may not: the one in front does
        entitlement = snapshot.policy.entitlement(job.project_id, "v4")
        assert committed[job.project_id] + job.demand.get("v4", 0) > entitlement


def assert_granting_helps(snapshot: Snapshot, data: st.DataObject, *, nothing_stops: bool = False) -> None:
    assert snapshot.policy is not None
    plan = schedule(snapshot, NOW)
    if nothing_stops:
        assume(all(decision.verdict is not Verdict.EVICT for decision in plan.decisions))
    asks = COMPETING | {ReasonCode.EXCEEDS_POOL, ReasonCode.EXCEEDS_PROJECT_MAX}
    fifo = {project for project in PROJECTS if snapshot.policy.rules(project).fifo}
    project_of = {job.name: job.project_id for job in snapshot.jobs}
    # What a job behind the head of a strict line lacks depends on that head, which its reason names instead.
    waiting = [d for d in plan.decisions if d.reason and d.reason.code in asks and project_of[d.name] not in fifo]
    assume(waiting)
    decision = data.draw(st.sampled_from(waiting))
    assert decision.reason is not None and (decision.reason.missing or decision.reason.over_limit)
    after = carried_out(snapshot, plan)
    (project,) = [job.project_id for job in snapshot.jobs if job.name == decision.name]
    granted = with_more_free(snapshot.policy, dict(decision.reason.missing))
    granted = with_limit_raised(granted, project, dict(decision.reason.over_limit))
    after = replace(after, policy=granted)
    assert decisions(schedule(after, NOW))[decision.name].verdict is Verdict.START


@SETTINGS
@given(snapshots(overfull=False, claims=False, backoff=False, slots=False), st.data())
def test_granting_what_is_missing_starts_the_job_behind_any_jobs_of_its_project(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    jobs = (replace(job, project_id="a") if job.status is JobStatus.PENDING else job for job in snapshot.jobs)
    assert_granting_helps(replace(snapshot, jobs=tuple(jobs)), data)


@SETTINGS
@given(snapshots(kinds=("v4",), overfull=False, claims=False, backoff=False, slots=False), st.data())
def test_granting_what_is_missing_starts_the_job_behind_jobs_of_other_projects(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    jobs = (
        replace(job, demand={"v4": 8}) if job.status is JobStatus.PENDING else job
        for job in snapshot.jobs
        if job.status is not JobStatus.STOPPING  # what is being freed for several projects is told less exactly
    )
    assert_granting_helps(replace(snapshot, jobs=tuple(jobs)), data, nothing_stops=True)


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
