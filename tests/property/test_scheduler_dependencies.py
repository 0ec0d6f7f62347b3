"""Jobs that await others: they change nothing for the rest, and their reason tells exactly what would start them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler import Job, JobStatus, ReasonCode, Scheduler, Snapshot, Verdict, schedule
from tests.property.scheduler_snapshots import NOW, PROJECTS, SETTINGS, carried_out, code, decisions, snapshots
from tests.property.test_scheduler_granting import with_limit_raised, with_more_free
from tests.property.test_scheduler_memory import History

# Reasons that no end of another job could mend, and that come first.
BEFORE = {
    ReasonCode.NOT_MEMBER,
    ReasonCode.UNKNOWN_TYPE,
    ReasonCode.NOT_ALLOWED,
    ReasonCode.HELD,
    ReasonCode.QUOTA_FILE_INVALID,
}


@st.composite
def with_dependents(draw: st.DrawFn, of: st.SearchStrategy[Snapshot]) -> tuple[Snapshot, frozenset[str]]:
    """A snapshot, and the names of its waiting jobs that await others, of the snapshot or not."""
    snapshot = draw(of)
    names = [job.name for job in snapshot.jobs] + ["elsewhere"]
    jobs = []
    for job in snapshot.jobs:
        after = draw(st.lists(st.sampled_from(names), max_size=12, unique=True)) if draw(st.booleans()) else []
        jobs.append(replace(job, after=tuple(after)))
    dependent = frozenset(job.name for job in jobs if job.after and job.status is JobStatus.PENDING)
    return replace(snapshot, jobs=tuple(jobs)), dependent


@SETTINGS
@given(with_dependents(snapshots()))
def test_the_others_are_decided_as_if_they_were_not_there(given_jobs: tuple[Snapshot, frozenset[str]]) -> None:
    snapshot, dependent = given_jobs
    alone = schedule(replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.name not in dependent)), NOW)
    both = schedule(snapshot, NOW)
    assert both.acting == alone.acting
    assert [one for one in both.waiting if one.name not in dependent] == list(alone.waiting)
    assert (both.promised, both.pool, both.evicted) == (alone.promised, alone.pool, alone.evicted)
    assert both.projects == alone.projects


@SETTINGS
@given(with_dependents(snapshots()))
def test_they_wait_for_whom_they_await(given_jobs: tuple[Snapshot, frozenset[str]]) -> None:
    snapshot, dependent = given_jobs
    decided = decisions(schedule(snapshot, NOW))
    for job in snapshot.jobs:
        if job.name not in dependent:
            assert code(decided[job.name]) is not ReasonCode.WAITING_FOR_DEPENDENCY
            continue
        reason = decided[job.name].reason
        assert reason is not None and decided[job.name].position is None
        if reason.code in BEFORE:
            assert ReasonCode.WAITING_FOR_DEPENDENCY in reason.also
            continue
        assert reason.code is ReasonCode.WAITING_FOR_DEPENDENCY
        assert reason.holders == job.after[:10] and job.after[0] in reason.message


def assert_granting_starts_it(snapshot: Snapshot, dependent: frozenset[str], data: st.DataObject) -> None:
    assert snapshot.policy is not None
    plan = schedule(snapshot, NOW)
    assume(all(decision.verdict is not Verdict.EVICT for decision in plan.acting))
    fifo = {project for project in PROJECTS if snapshot.policy.rules(project).fifo}
    project_of = {job.name: job.project_id for job in snapshot.jobs}
    waiting = [
        decision
        for decision in plan.waiting
        if code(decision) is ReasonCode.WAITING_FOR_DEPENDENCY and project_of[decision.name] not in fifo
    ]
    assume(waiting)
    decision = data.draw(st.sampled_from(waiting))
    reason = decision.reason
    assert reason is not None
    granted = with_more_free(snapshot.policy, dict(reason.missing))
    granted = with_limit_raised(granted, project_of[decision.name], dict(reason.over_limit))
    after = carried_out(snapshot, plan)
    jobs = tuple(replace(job, after=()) if job.name == decision.name else job for job in after.jobs)
    slots = None if snapshot.bastion_slots is None else snapshot.bastion_slots + reason.slots
    after = replace(after, jobs=jobs, policy=granted, bastion_slots=slots)
    started = decisions(schedule(after, NOW))[decision.name]
    assert started.verdict is Verdict.START, (reason, started)


@SETTINGS
@given(with_dependents(snapshots(overfull=False, claims=False, backoff=False, slots=False, overdue=False)), st.data())
def test_the_end_of_the_awaited_and_what_is_missing_start_it_behind_jobs_of_its_project(
    given_jobs: tuple[Snapshot, frozenset[str]], data: st.DataObject
) -> None:
    snapshot, dependent = given_jobs
    jobs = (replace(job, project_id="a") if job.status is JobStatus.PENDING else job for job in snapshot.jobs)
    assert_granting_starts_it(replace(snapshot, jobs=tuple(jobs)), dependent, data)


@SETTINGS
@given(
    with_dependents(snapshots(kinds=("v4",), overfull=False, claims=False, backoff=False, slots=False, overdue=False)),
    st.data(),
)
def test_the_end_of_the_awaited_and_what_is_missing_start_it_behind_jobs_of_other_projects(
    given_jobs: tuple[Snapshot, frozenset[str]], data: st.DataObject
) -> None:
    snapshot, dependent = given_jobs
    jobs = (
        replace(job, demand={"v4": 8}) if job.status is JobStatus.PENDING else job
        for job in snapshot.jobs
        if job.status is not JobStatus.STOPPING
    )
    assert_granting_starts_it(replace(snapshot, jobs=tuple(jobs)), dependent, data)


class ChainedHistory(History):
    """Jobs that come, change and go as in `History`; some await others, and stop doing so when these are gone."""

    def snapshot(self) -> Snapshot:
        draw = random.Random(self.random.random())
        for job in list(self._jobs.values()):
            if job.status is JobStatus.PENDING and draw.random() < 0.3:
                others = sorted(self._jobs)
                self._jobs[job.name] = replace(job, after=tuple(draw.sample(others, min(len(others), 2))))
        for job in list(self._jobs.values()):
            left = tuple(name for name in job.after if name in self._jobs)
            if left != job.after:
                self._jobs[job.name] = replace(job, after=left if job.status is JobStatus.PENDING else ())
        return super().snapshot()


@pytest.mark.parametrize("seed", range(25))
def test_what_is_remembered_of_dependents_never_shows(seed: int) -> None:
    history, remembering = ChainedHistory(seed), Scheduler()
    for _ in range(12):
        snapshot = history.snapshot()
        plan = remembering.schedule(snapshot, history.now)
        assert plan.to_json() == schedule(snapshot, history.now).to_json()
        history.go_on(plan)


def test_a_claim_ends_where_the_job_awaits_another_one() -> None:
    claimant = Job(name="x", project_id="a", user_id="u", queued_at=0.0, demand={"v4": 8}, promised=True, after=("y",))
    victim = Job(
        name="v",
        project_id="b",
        user_id="u",
        queued_at=0.0,
        demand={"v4": 8},
        charged={"v4": 8},
        status=JobStatus.STOPPING,
        started_at=0.0,
        evicted_for="x",
    )
    from tests.property.scheduler_snapshots import policy_of

    policy = policy_of(({"v4": 8},), {"a": {"v4": 1.0}, "b": {"v4": 1.0}})
    plan = schedule(Snapshot(policy=policy, jobs=(claimant, victim)), NOW)
    assert plan.promised == frozenset() and code(decisions(plan)["x"]) is ReasonCode.WAITING_FOR_DEPENDENCY
