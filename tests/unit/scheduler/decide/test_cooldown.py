"""Who was stopped in vain over and over leaves idle capacity to others, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler import ReasonCode
from scheduler.decide.cooldown import cooldown_seconds, cooldown_until, in_cooldown
from tests.support.scheduler_jobs import decision
from tests.support.scheduler_pools import NOW, code, pass_over, pending, policy, running, stopping, verdicts

HOUR = 3600.0
VAIN = {"evictions": 2, "futile_evictions": 2, "evicted_at": NOW - HOUR, "evicted_seconds": 4 * HOUR}


@pytest.mark.parametrize(
    ("futile", "hours"), [(2, 2.0), (3, 4.0), (4, 8.0), (5, 16.0), (6, 24.0), (7, 24.0), (1_000_000, 24.0)]
)
def test_the_rest_doubles_and_is_never_longer_than_a_day(futile: int, hours: float) -> None:
    lost = 5.0 * HOUR * futile
    job = pending("x", "a", 8, evictions=futile, futile_evictions=futile, evicted_at=100.0, evicted_seconds=lost)
    assert cooldown_seconds(job) == hours * HOUR
    assert cooldown_until(job) == 100.0 + hours * HOUR
    assert (in_cooldown(job, 100.0 + hours * HOUR - 1), in_cooldown(job, 100.0 + hours * HOUR)) == (True, False)


@pytest.mark.parametrize(("futile", "minutes"), [(2, 5), (3, 10), (4, 20)])
def test_who_lost_minutes_rests_for_minutes(futile: int, minutes: int) -> None:
    lost = 300.0 * futile
    job = pending("x", "b", 64, evictions=futile, futile_evictions=futile, evicted_at=NOW, evicted_seconds=lost)
    assert cooldown_seconds(job) == minutes * 60.0
    waits = pass_over(policy(), job, running("r", "a", 1))
    assert code(waits, "x") is ReasonCode.WAITING_FOR_POOL
    assert code(pass_over(policy(), job), "x") is ReasonCode.BACKOFF
    awake = replace(job, evicted_at=NOW - minutes * 60.0)
    assert verdicts(pass_over(policy(), awake)) == {"x": "start"}


def test_a_job_that_saves_its_work_never_rests_however_often_it_is_stopped() -> None:
    job = pending("x", "b", 64, evictions=50, futile_evictions=1, evicted_at=NOW)
    assert cooldown_until(job) is None
    assert verdicts(pass_over(policy(), job)) == {"x": "start"}


def test_a_resting_job_leaves_an_idle_pool_alone_and_says_until_when() -> None:
    plan = pass_over(policy(), pending("x", "a", 64, **VAIN))
    reason = decision(plan, "x").reason
    assert reason is not None and reason.code is ReasonCode.BACKOFF
    assert "evicted 2 times in a row before it saved any work" in reason.message
    assert "1970-01-12T14:46:40Z" in reason.message and "1970-01-12T14:46:40Z" in reason.unblock
    later = pass_over(policy(), pending("x", "a", 64, **{**VAIN, "evicted_at": NOW - 2 * HOUR}))
    assert verdicts(later) == {"x": "start"}


def test_a_resting_job_starts_within_its_projects_share_and_stops_borrowers_for_it() -> None:
    assert verdicts(pass_over(policy(), pending("x", "a", 32, **VAIN))) == {"x": "start"}
    borrowers = [running(f"b{n}", "b", 16) for n in range(4)]
    plan = pass_over(policy(), *borrowers, pending("x", "a", 32, **VAIN))
    assert code(plan, "x") is ReasonCode.WAITING_FOR_PREEMPTED


def test_a_resting_job_keeps_the_room_that_is_being_made_for_it() -> None:
    gone = [running("own", "a", 16), stopping("b", "b", 32, evicted_for="x"), running("c", "b", 16)]
    plan = pass_over(policy(), *gone, pending("x", "a", 32, **VAIN))
    assert code(plan, "x") is ReasonCode.WAITING_FOR_PREEMPTED


def test_a_resting_job_whose_share_is_taken_is_told_of_both() -> None:
    plan = pass_over(policy(), running("own", "a", 32), running("b", "b", 32), pending("x", "a", 8, **VAIN))
    reason = decision(plan, "x").reason
    assert reason is not None and reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert ReasonCode.BACKOFF in reason.also


def test_a_backoff_that_lasts_longer_than_the_rest_is_the_one_that_is_told() -> None:
    plan = pass_over(policy(), pending("x", "a", 64, not_before=NOW + 9 * HOUR, stockout=True, **VAIN))
    assert code(plan, "x") is ReasonCode.STOCKOUT
    assert "no capacity" in str(decision(plan, "x").reason)


def test_a_backoff_holds_back_whom_its_share_would_cover_too() -> None:
    plan = pass_over(policy(), pending("x", "a", 32, not_before=NOW + 1, **VAIN))
    assert verdicts(plan) == {"x": "wait"}
