"""Delegated jobs: they change nothing for the others, and the others nothing for them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler import Job, JobStatus, ReasonCode, Snapshot, Verdict, schedule
from tests.property.scheduler_snapshots import (
    NOW,
    OTHER_USER,
    PROJECTS,
    SETTINGS,
    USER,
    carried_out,
    code,
    decisions,
    is_allowed,
    snapshots,
)


@st.composite
def delegated_jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    return tuple(
        Job(
            name=f"d{index:02}",
            project_id=draw(st.sampled_from((*PROJECTS, "unknown"))),
            user_id=draw(st.sampled_from((USER, OTHER_USER))),
            priority=draw(st.sampled_from((1, 5))),
            queued_at=float(draw(st.integers(-90_000, 20))),
            status=(status := draw(st.sampled_from(JobStatus))),
            started_at=None if status is JobStatus.PENDING else float(draw(st.integers(100, 9_000))),
            not_before=draw(st.sampled_from((None, None, NOW - 1, NOW + 60))) if status is JobStatus.PENDING else None,
            futile_evictions=draw(st.sampled_from((0, 3))),
            evicted_at=NOW - 1,
            evicted_seconds=9_000.0,
            promised=draw(st.booleans()) and status is JobStatus.PENDING,
            delegated=True,
        )
        for index in range(draw(st.integers(0, 8)))
    )


def mixed(snapshot: Snapshot, delegated: tuple[Job, ...], most: int) -> Snapshot:
    jobs = sorted((*snapshot.jobs, *delegated), key=lambda job: job.queued_at)
    return replace(snapshot, jobs=tuple(jobs), submitted_most=most)


@SETTINGS
@given(snapshots(), delegated_jobs(), st.integers(0, 6))
def test_what_is_decided_on_the_others_is_what_it_is_without_them(
    snapshot: Snapshot, delegated: tuple[Job, ...], most: int
) -> None:
    alone, both = schedule(snapshot, NOW), schedule(mixed(snapshot, delegated, most), NOW)
    names = {job.name for job in delegated}
    assert [one for one in both.acting if one.name not in names] == list(alone.acting)
    assert [one for one in both.waiting if one.name not in names] == list(alone.waiting)
    assert (both.promised, both.pool, both.evicted) == (alone.promised, alone.pool, alone.evicted)
    assert {name: usage for name, usage in both.projects.items() if name != "unknown"} == alone.projects


@SETTINGS
@given(snapshots(), delegated_jobs(), st.integers(0, 6))
def test_they_start_in_order_up_to_the_limit_and_nothing_else_holds_or_stops_them(
    snapshot: Snapshot, delegated: tuple[Job, ...], most: int
) -> None:
    assert snapshot.policy is not None
    given_jobs = mixed(snapshot, delegated, most)
    decided = decisions(schedule(given_jobs, NOW))
    submitted, ready = 0, []
    for job in delegated:
        if job.status is not JobStatus.PENDING:
            submitted += 1
            kept = Verdict.KEEP if job.status is JobStatus.RUNNING else Verdict.STOPPING
            assert decided[job.name].verdict is kept
        elif job.project_id == "unknown":
            assert code(decided[job.name]) is ReasonCode.NOT_MEMBER
        elif not is_allowed(snapshot.policy, job):
            assert code(decided[job.name]) is ReasonCode.NOT_ALLOWED
        elif snapshot.policy.rules(job.project_id).hold:
            assert code(decided[job.name]) is ReasonCode.HELD
        elif job.not_before == NOW + 60:
            assert code(decided[job.name]) is ReasonCode.BACKOFF
        else:
            ready.append(job)
    ready.sort(key=lambda job: (job.priority, job.queued_at, job.name))
    room = max(0, most - submitted)
    for job in ready[:room]:
        assert (decided[job.name].verdict, decided[job.name].tier) == (Verdict.START, None)
    assert all(code(decided[job.name]) is ReasonCode.TOO_MANY_SUBMITTED for job in ready[room:])
    after = carried_out(given_jobs, schedule(given_jobs, NOW))
    again = decisions(schedule(after, NOW))
    assert not [job for job in delegated if again[job.name].verdict is Verdict.START]
