"""Why a job waits, case by case: the headline, its arithmetic, and what stands under also."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from quota import Policy, ProjectRules
from scheduler import ReasonCode, Snapshot, schedule
from tests.support.scheduler_jobs import decision
from tests.support.scheduler_pools import NOW, code, pass_over, pending, policy, running, stopping, verdicts


def test_without_any_valid_quota_nothing_starts_and_nothing_is_evicted() -> None:
    plan = pass_over(None, running("r", "a", 8), stopping("s", "a", 8), pending("x", "b", {}))
    assert verdicts(plan) == {"r": "keep", "s": "stopping", "x": "wait"}
    assert code(plan, "x") is ReasonCode.QUOTA_FILE_INVALID


def test_a_held_pool_starts_and_evicts_nothing() -> None:
    plan = pass_over(policy(), running("r", "a", 64), pending("x", "b", 8), held=True)
    assert verdicts(plan) == {"r": "keep", "x": "wait"}
    assert code(plan, "x") is ReasonCode.HELD


def test_a_user_outside_the_project_is_told_where_it_belongs() -> None:
    quota = replace_members(policy(), b=("v",))
    plan = pass_over(quota, pending("x", "b", 8), pending("y", "nowhere", 8), pending("z", "a", 8, user_id="w"))
    for name in ("x", "y", "z"):
        assert code(plan, name) is ReasonCode.NOT_MEMBER
    reasons = {name: decision(plan, name).reason for name in ("x", "y", "z")}
    assert reasons["x"] is not None and reasons["x"].message.endswith("u is a member of a")
    assert reasons["y"] is not None and "the quota file has no project nowhere" in reasons["y"].message
    assert reasons["z"] is not None and reasons["z"].message.endswith("w is a member of no project")
    assert reasons["x"].unblock == "an admin adds u to b in the quota file, or the job is submitted under a"
    assert reasons["y"].unblock == (
        "an admin adds project nowhere to the quota file, with u among its members, or the job is submitted under a"
    )
    assert reasons["z"].unblock == "an admin adds w to a in the quota file"
    unchecked = pass_over(quota, pending("x", "b", 8), pending("y", "nowhere", 8), check_membership=False)
    assert verdicts(unchecked) == {"x": "start", "y": "start"}


def test_a_job_that_waits_for_a_slot_and_for_units_is_told_of_both() -> None:
    jobs = [running("s", "a", 0, on_bastion=True), running("r", "a", 32), running("q", "b", 32)]
    plan = pass_over(policy(), *jobs, pending("x", "a", 8, on_bastion=True), bastion_slots=1)
    reason = decision(plan, "x").reason
    assert reason is not None and reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert "needs 8 v4" in reason.message and "all slots of the bastion's own host are in use" in reason.message
    assert (reason.holders, reason.missing) == (("r", "s"), {"v4": 8})
    assert reason.unblock == (
        "2 more slots of the bastion's own host become free or 1 job of user u ends there, and either jobs of "
        "project a end, or 8 more v4 become free"
    )
    plan = pass_over(policy(32), *jobs[:2], pending("x", "b", 8, on_bastion=True), bastion_slots=1)
    reason = decision(plan, "x").reason
    assert reason is not None and reason.code is ReasonCode.WAITING_FOR_POOL
    assert reason.unblock == (
        "2 more slots of the bastion's own host become free or 1 job of user u ends there, and 8 more v4 become free"
    )


def replace_members(quota: Policy, **members: tuple[str, ...]) -> Policy:
    return Policy(tiers=quota.tiers, weights=quota.weights, members={**quota.members, **members})


def test_unknown_types_and_oversized_jobs_say_so() -> None:
    plan = pass_over(policy(), pending("x", "a", {"v9": 1}), pending("y", "a", 65))
    assert code(plan, "x") is ReasonCode.UNKNOWN_TYPE
    assert code(plan, "y") is ReasonCode.EXCEEDS_POOL
    reason = decision(plan, "y").reason
    assert reason is not None and reason.missing == {"v4": 1}


def test_a_job_that_asks_for_nothing_of_a_type_is_not_kept_by_that_type() -> None:
    demand = {"v4": 8, "v9": 0}
    assert verdicts(pass_over(policy(), pending("x", "a", demand))) == {"x": "start"}
    reason = decision(pass_over(policy(), pending("x", "a", demand, user_id="stranger")), "x").reason
    assert reason is not None
    assert (reason.code, reason.also) == (ReasonCode.NOT_MEMBER, ())


def test_lower_reasons_stand_under_also_in_their_order() -> None:
    job = pending("x", "b", {"v9": 1}, user_id="stranger", not_before=NOW + 1, stockout=True)
    reason = decision(pass_over(policy(), job, held=True), "x").reason
    assert reason is not None
    assert reason.code is ReasonCode.NOT_MEMBER
    assert reason.also == (ReasonCode.UNKNOWN_TYPE, ReasonCode.HELD, ReasonCode.STOCKOUT)


@pytest.mark.parametrize(("stockout", "expected"), [(False, ReasonCode.BACKOFF), (True, ReasonCode.STOCKOUT)])
def test_a_job_is_not_started_before_its_backoff_is_over(stockout: bool, expected: ReasonCode) -> None:
    job = pending("x", "a", 8, not_before=NOW + 1, stockout=stockout)
    plan = pass_over(policy(), job)
    assert code(plan, "x") is expected
    reason = decision(plan, "x").reason
    assert reason is not None and "1970-01-12T13:46:41Z" in reason.message
    assert verdicts(schedule(Snapshot(policy=policy(), jobs=(job,)), NOW + 1)) == {"x": "start"}


def test_a_backoff_beyond_the_calendar_is_said_to_be_one() -> None:
    reason = decision(pass_over(policy(), pending("x", "a", 32, not_before=1e18)), "x").reason
    assert reason is not None
    assert reason.unblock == "the backoff ends at a time beyond the calendar"


def test_a_backoff_is_no_headline_while_something_else_is_missing_too() -> None:
    plan = pass_over(policy(), running("r", "a", 32), running("s", "b", 32), pending("x", "a", 8, not_before=NOW + 1))
    reason = decision(plan, "x").reason
    assert reason is not None and reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert reason.also == (ReasonCode.WAITING_FOR_POOL, ReasonCode.BACKOFF)


def test_reasons_carry_their_arithmetic_and_since_when() -> None:
    quota = policy(512, a=1.0, b=7.0)
    jobs = [running("r", "a", 48), running("s", "b", 448), pending("x", "a", 32, queued_at=7.0)]
    reason = decision(pass_over(quota, *jobs), "x").reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert reason.message == "needs 32 v4; project a is using 48 and its share is 64; 16 of 512 are free"
    assert reason.missing == {"v4": 16}
    assert reason.holders == ("r",)
    assert reason.since == 7.0
    assert reason.unblock == "jobs of project a end, or 16 more v4 become free"
    later = decision(pass_over(quota, *jobs[:2], replace(jobs[2], waiting_since=9.0)), "x").reason
    assert later is not None and later.since == 9.0


@pytest.mark.parametrize(("units", "missing"), [(23, 23), (24, 48)])
def test_what_is_missing_counts_whom_so_much_more_would_start_first(units: int, missing: int) -> None:
    # x has 8 of its 32 already, and is first if 24 more become free.
    quota = policy(64, a=1.0, b=1.0, c=0.0)
    jobs = [stopping("s", "a", 24), running("r", "b", 32), pending("x", "a", 32, queued_at=NOW - 90)]
    reason = decision(pass_over(quota, *jobs, pending("y", "c", units, queued_at=NOW - 60)), "y").reason
    assert reason is not None
    assert reason.missing == {"v4": missing}
    assert "0 of them" not in reason.message and "8 of them reserved for jobs that start soon" in reason.message


@pytest.mark.parametrize(("count", "told"), [(1, ""), (10, ""), (11, " and 1 other"), (12, " and 2 others")])
def test_ten_of_those_that_make_room_are_named(count: int, told: str) -> None:
    names = [f"v{number:02}" for number in range(count)]
    jobs = [stopping(name, "b", 4, evicted_for="x") for name in names]
    full = running("r", "b", 64 - 4 * count)
    reason = decision(pass_over(policy(), *jobs, full, pending("x", "a", 4 * min(count, 8))), "x").reason
    assert reason is not None
    assert reason.holders == tuple(names[:10])
    assert f"{', '.join(names[:10])}{told} {'is' if count == 1 else 'are'} gone" in reason.unblock


def test_a_single_unit_that_is_kept_for_somebody_is_told() -> None:
    rules = {"a": ProjectRules(lending_limit={"v4": 0})}
    quota = replace(policy(64, a=1.0, b=1.0, c=0.0), project_rules=rules)
    own = [running("r", "a", 31), running("s", "b", 31)]
    reason = decision(pass_over(quota, *own, pending("x", "c", 2, queued_at=NOW - 60)), "x").reason
    assert reason is not None
    assert reason.message == (
        "needs 2 v4; project c is using 0 and its share is 0; 2 of 64 are free, 1 of them not lent "
        "by other projects (lending_limit)"
    )
    assert reason.missing == {"v4": 1}
    claim = [stopping("v", "a", 31, evicted_for="y"), pending("y", "a", 32, promised=True, queued_at=NOW - 60)]
    reason = decision(pass_over(policy(), *claim, own[1], pending("x", "b", 2, queued_at=NOW - 60)), "x").reason
    assert reason is not None
    assert "2 of 64 are free, 1 of them reserved for jobs that start soon" in reason.message


def test_types_are_told_in_the_order_of_their_names() -> None:
    quota = policy(kinds=("v4", "v5e"))
    full = running("r", "a", {"v5e": 64, "v4": 64})
    reason = decision(pass_over(quota, full, pending("x", "a", {"v5e": 1, "v4": 2}, queued_at=NOW - 60)), "x").reason
    assert reason is not None
    assert reason.message == (
        "needs 2 v4; project a is using 64 and its share is 32; 0 of 64 are free; "
        "needs 1 v5e; project a is using 64 and its share is 32; 0 of 64 are free"
    )
    assert reason.unblock == "jobs of project a end, or 2 more v4 and 1 more v5e become free"


def test_what_jobs_ahead_ask_is_part_of_what_is_missing() -> None:
    jobs = [running("r", "a", 60), pending("x", "a", 8, queued_at=1.0), pending("y", "a", 8, queued_at=2.0)]
    reason = decision(pass_over(policy(a=1.0), *jobs), "y").reason
    assert reason is not None
    assert reason.missing == {"v4": 12}
    assert reason.message.endswith("; 1 job ahead of it asks for 8 v4")


def test_a_job_behind_room_kept_for_its_own_projects_higher_priority_says_so() -> None:
    quota = policy(64, a=1.0, b=1.0)
    jobs = [
        stopping("v", "b", 8, evicted_for="x"),
        running("s", "b", 32),
        pending("x", "a", 32, priority=1, promised=True),
        pending("y", "a", 8, priority=5),
    ]
    plan = pass_over(quota, *jobs)
    assert code(plan, "x") is ReasonCode.WAITING_FOR_PREEMPTED
    assert code(plan, "y") is ReasonCode.BEHIND_HIGHER_PRIORITY


def test_who_lacks_only_a_slot_while_those_ahead_lack_units_is_told_of_both_in_a_sentence() -> None:
    jobs = [running("s", "a", 0, on_bastion=True), running("r", "a", 30), running("q", "b", 30)]
    waiting = [pending("first", "a", 6), pending("x", "a", 8, priority=5, queued_at=200.0, on_bastion=True)]
    reason = decision(pass_over(policy(72), *jobs, *waiting, bastion_slots=1), "x").reason
    assert reason is not None
    assert reason.unblock.endswith("ends there, and either jobs of project a end, or 2 more v4 become free")


def test_who_may_not_pass_an_overdue_job_of_a_higher_priority_is_told_so() -> None:
    old = NOW - 25 * 3600
    jobs = [
        running("own", "a", 32),
        pending("big", "a", 64, priority=4, queued_at=old),
        pending("small", "a", 2, queued_at=NOW),
    ]
    plan = pass_over(policy(a=3, b=1), *jobs)
    reason = decision(plan, "small").reason
    assert reason is not None and reason.code is ReasonCode.BEHIND_HIGHER_PRIORITY
    assert (
        reason.holders == ("big",) and "has a higher priority and has waited for more than 24 hours" in reason.message
    )
    # Of the same priority they do pass it, and so they do while another project's share is in its way.
    same = [replace(job, priority=5) for job in jobs]
    assert verdicts(pass_over(policy(a=3, b=1), *same))["small"] == "start"
    assert verdicts(pass_over(policy(a=3, b=1), *jobs, running("theirs", "b", 4)))["small"] == "start"
    assert (
        verdicts(pass_over(policy(a=3, b=1), *jobs[:2], pending("small", "a", 2)))["small"] == "wait"
    )  # overdue itself


def test_what_would_unblock_a_job_never_exceeds_the_pool() -> None:
    quota = policy(32, a=1.0, b=1.0)
    waiting = [pending(f"w{number}", "a", 32, queued_at=NOW - 90 + number) for number in range(3)]
    plan = pass_over(quota, running("r", "a", 32), *waiting)
    reason = decision(plan, "w2").reason
    assert reason is not None and reason.missing == {"v4": 96}
    assert reason.unblock == "2 jobs ahead of it start and end"
    first = decision(plan, "w0").reason
    assert first is not None and first.unblock == "32 more v4 become free"
    huge = decision(pass_over(quota, *waiting, pending("huge", "a", 80)), "huge").reason
    assert (
        huge is not None
        and huge.unblock == "an admin raises total_resources to at least 80 v4, or the job asks for less"
    )


def test_beside_a_reservation_no_more_is_asked_for_than_is_in_use() -> None:
    quota = policy(16, a=1.0, b=1.0)
    recently = {"a": {"v4": ((NOW + 60.0, 8), (math.inf, 0))}}
    waits = pending("x", "b", 16, queued_at=NOW - 60)
    alone = decision(pass_over(quota, waits, held_recently=recently), "x").reason
    assert alone is not None and alone.unblock == "the reservation ends at 13:47:40 UTC"
    beside = decision(pass_over(quota, running("r", "b", 8), waits, held_recently=recently), "x").reason
    assert beside is not None
    assert beside.unblock == "the reservation ends at 13:47:40 UTC and 8 more v4 become free"


def test_a_job_that_two_reservations_block_waits_for_the_later_one() -> None:
    recently = {name: {"v4": ((NOW + seconds, 8), (math.inf, 0))} for name, seconds in (("a", 60.0), ("c", 120.0))}
    waits = pending("x", "b", 24, queued_at=NOW - 60)
    jobs = (running("r", "b", 16), waits)
    reason = decision(pass_over(policy(40, a=1.0, b=1.0, c=1.0), *jobs, held_recently=recently), "x").reason
    assert reason is not None
    assert reason.unblock == "the reservation ends at 13:48:40 UTC, or 16 more v4 become free"
