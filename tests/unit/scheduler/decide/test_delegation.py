"""Jobs that Kueue decides on: handed over at once, as many as may be submitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quota import ProjectRules
from scheduler import Job, ReasonCode, Scheduler, Snapshot
from tests.support.scheduler_jobs import NOW, decision, pass_over, pending, policy, running, started


def delegated(name: str, project: str = "a", **fields: object) -> Job:
    return pending(name, project, 0, demand={}, delegated=True, **fields)


def submitted(name: str) -> Job:
    return running(name, "a", 0, demand={}, charged={}, delegated=True, tier=None)


def test_they_start_in_a_full_pool_past_the_head_of_a_strict_line() -> None:
    strict = policy(64, ProjectRules(fifo=True))
    plan = pass_over(strict, running("r", "a", 64), pending("w", "a", 64), delegated("k", queued_at=NOW))
    assert started(plan) == {"k"}
    assert decision(plan, "k").message == "Kueue decides when it runs"
    assert (plan.pool["v4"].used, plan.projects["a"].demand) == (64, {"v4": 128})


def test_one_that_backs_off_holds_nobody_in_a_strict_line() -> None:
    strict = policy(64, ProjectRules(fifo=True))
    plan = pass_over(strict, delegated("k", not_before=NOW + 5, priority=1), pending("w", "a", 8))
    assert started(plan) == {"w"}
    reason = decision(plan, "k").reason
    assert reason is not None
    assert reason.code is ReasonCode.BACKOFF


def test_those_beyond_the_limit_are_told_how_many_must_end() -> None:
    plan = pass_over(
        policy(), *(submitted(f"s{n}") for n in range(3)), delegated("k"), delegated("l"), submitted_most=2
    )
    first, second = decision(plan, "k").reason, decision(plan, "l").reason
    assert first is not None
    assert second is not None
    assert first.message == "Kueue already has 3 jobs of this bastion; at most 2 are submitted at once"
    assert first.unblock == "2 of the submitted jobs end"
    assert second.message.endswith("submitted at once; 1 waiting job goes first")
    assert second.unblock == "3 of the submitted jobs end"


def test_granting_what_the_reason_says_starts_it() -> None:
    jobs = [submitted("s0"), submitted("s1"), delegated("k"), delegated("l"), delegated("m")]
    reason = decision(pass_over(policy(), *jobs, submitted_most=2), "m").reason
    assert reason is not None
    assert reason.unblock == "3 of the submitted jobs end"
    assert "m" in started(pass_over(policy(), *jobs[2:], submitted_most=3))


def test_one_project_with_many_leaves_the_last_tenth_to_projects_with_few() -> None:
    """Whatever their priorities; 2 are few of 200."""
    many = [delegated(f"many-{n:03}", priority=0) for n in range(300)]
    others = [delegated(f"{project}-{n}", project, priority=5) for project in "bcd" for n in range(4)]
    plan = pass_over(policy(), *many, *others, submitted_most=200)
    assert [job.name for job in many if job.name in started(plan)] == [job.name for job in many[:180]]
    assert {name for name in started(plan) if not name.startswith("many")} == {f"{p}-{n}" for p in "bcd" for n in "01"}
    reason = decision(plan, "many-180").reason
    assert reason is not None
    assert reason.message == (
        "Kueue already has 186 jobs of this bastion; at most 200 are submitted at once, "
        "20 of them kept for projects with few"
    )
    assert reason.unblock == "7 of the submitted jobs end"


@pytest.mark.parametrize("most", [3, 10, 40])
def test_granting_what_the_reason_says_starts_any_that_waits(most: int) -> None:
    held = [replace(submitted(f"s{n}"), project_id="ab"[n % 3 == 0]) for n in range(most)]
    waiting = [delegated(f"{p}{n}", p, priority=n % 2) for p in "abc" for n in range(9)]
    plan = pass_over(policy(), *held, *waiting, submitted_most=most)
    for job in waiting:
        if job.name in started(plan):
            continue
        reason = decision(plan, job.name).reason
        assert reason is not None
        ends = int(reason.unblock.split()[0])
        present = [*held, *(submitted_as(each) for each in waiting if each.name in started(plan))]
        rest = [each for each in waiting if each.name not in started(plan)]
        for left in (present[ends:], present[: len(present) - ends]):
            if ends <= len(present):
                assert job.name in started(pass_over(policy(), *left, *rest, submitted_most=most)), (job.name, reason)


def submitted_as(job: Job) -> Job:
    return replace(submitted(job.name), project_id=job.project_id)


def test_a_higher_limit_counts_at_once() -> None:
    scheduler = Scheduler()
    before = Snapshot(policy=policy(), jobs=(submitted("s"), delegated("k")), submitted_most=1, check_membership=False)
    assert not started(scheduler.schedule(before, NOW))
    assert not started(scheduler.schedule(before, NOW + 1))
    assert started(scheduler.schedule(replace(before, submitted_most=2), NOW + 2)) == {"k"}


def test_evictions_by_kueue_cause_no_cooldown() -> None:
    often = delegated("k", futile_evictions=9, evictions=9, evicted_at=NOW - 1, evicted_seconds=9e9)
    assert started(pass_over(policy(), often)) == {"k"}
