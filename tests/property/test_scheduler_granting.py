"""Whoever is granted exactly what its reason says is missing starts in the next pass."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from quota import Policy
from scheduler import JobStatus, ReasonCode, Snapshot, Verdict, schedule
from tests.property.scheduler_snapshots import (
    NOW,
    PROJECTS,
    SETTINGS,
    carried_out,
    decisions,
    snapshots,
)

COMPETING = {ReasonCode.WAITING_FOR_POOL, ReasonCode.WAITING_FOR_PROJECT_SHARE, ReasonCode.BEHIND_HIGHER_PRIORITY}


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
@given(snapshots(overfull=False, claims=False, backoff=False, slots=False, overdue=False), st.data())
def test_granting_what_is_missing_starts_the_job_behind_any_jobs_of_its_project(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    jobs = (replace(job, project_id="a") if job.status is JobStatus.PENDING else job for job in snapshot.jobs)
    assert_granting_helps(replace(snapshot, jobs=tuple(jobs)), data)


@SETTINGS
@given(snapshots(kinds=("v4",), overfull=False, claims=False, backoff=False, slots=False, overdue=False), st.data())
def test_granting_what_is_missing_starts_the_job_behind_jobs_of_other_projects(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    jobs = (
        replace(job, demand={"v4": 8}) if job.status is JobStatus.PENDING else job
        for job in snapshot.jobs
        if job.status is not JobStatus.STOPPING  # what is being freed for several projects is told less exactly
    )
    assert_granting_helps(replace(snapshot, jobs=tuple(jobs)), data, nothing_stops=True)
