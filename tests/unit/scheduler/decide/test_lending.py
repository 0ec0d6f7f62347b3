"""Who is stopped, who is lent to, and that nobody starves; each test begins with what it is about."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from quota import ProjectRules
from scheduler import RecentHoldings
from tests.support.scheduler_jobs import HOUR, NOW, evicted, pass_over, pending, policy, running, started

# Victims


def test_who_saved_its_work_a_moment_ago_goes_before_who_did_not() -> None:
    borrowers = [
        running("old", "a", 16, age=9 * HOUR, checkpointed_at=NOW - 10),
        running("young", "a", 16, age=600.0),
        running("core", "a", 32, age=10 * HOUR),
    ]
    assert evicted(pass_over(policy(), *borrowers, pending("x", "b", 16))) == {"old"}


def test_what_was_stopped_in_vain_twice_is_spared_while_others_will_do() -> None:
    unlucky = running("unlucky", "a", 16, age=60.0, futile_evictions=2, evictions=2)
    other = running("other", "a", 16, age=1500.0)
    core = running("core", "a", 32, age=10 * HOUR)
    assert evicted(pass_over(policy(), unlucky, other, core, pending("x", "b", 16))) == {"other"}
    # An owner is not refused for it.
    assert evicted(pass_over(policy(), unlucky, other, core, pending("x", "b", 32))) == {"unlucky", "other"}


def test_what_was_stopped_seven_times_goes_last_of_all() -> None:
    tired = running("tired", "a", 16, age=60.0, evictions=7)
    dear = running("dear", "a", 16, age=9 * HOUR)
    core = running("core", "a", 32, age=10 * HOUR)
    assert evicted(pass_over(policy(), tired, dear, core, pending("x", "b", 16))) == {"dear"}


@pytest.mark.parametrize(("unsaved", "stopped"), [(200.0, "heavy"), (900.0, "light")])
def test_the_project_deep_in_debt_pays_though_it_loses_somewhat_more(unsaved: float, stopped: str) -> None:
    quota = policy(100, a=1.0, b=1.0, c=1.0, d=1.0)  # 25 each; a owes 30, b 10
    heavy = [running(f"heavy{n}", "a", 10, checkpointed_at=NOW - unsaved) for n in range(3)]
    heavy.append(running("a0", "a", 25, queued_at=NOW - 20 * HOUR))
    light = [running("b0", "b", 25, queued_at=NOW - 20 * HOUR), running("light", "b", 10, checkpointed_at=NOW - 100)]
    (victim,) = evicted(pass_over(quota, *heavy, *light, pending("x", "c", 20)))
    assert victim.startswith(stopped)


@pytest.mark.parametrize(
    "history",
    [{"age": 9 * HOUR}, {"age": HOUR, "evicted_seconds": 8 * HOUR, "evictions": 1}],
    ids=["in one go", "in two attempts"],
)
def test_the_job_that_has_run_for_hours_goes_though_it_loses_somewhat_more(history: dict[str, Any]) -> None:
    core = running("core", "a", 32, age=10 * HOUR)
    long = running("long", "a", 16, checkpointed_at=NOW - 300, queued_at=NOW - 9 * HOUR, **history)
    young = running("young", "a", 16, checkpointed_at=NOW - 150)
    assert evicted(pass_over(policy(), core, long, young, pending("x", "b", 16))) == {"long"}
    other = replace(long, checkpointed_at=NOW - 900)
    assert evicted(pass_over(policy(), core, other, young, pending("x", "b", 16))) == {"young"}


def test_a_job_that_would_run_on_a_private_quota_too_is_spared() -> None:
    first = running("first", "a", 32, age=120.0, queued_at=NOW - 20 * HOUR)
    second = running("second", "a", 32, age=1500.0, queued_at=NOW - HOUR)
    assert evicted(pass_over(policy(), first, second, pending("x", "b", 32))) == {"second"}


def test_a_borrower_younger_than_the_minimum_runtime_goes_only_if_nobody_else_will_do() -> None:
    quota = policy(rules=ProjectRules(minimum_runtime_seconds=900.0))
    young = running("young", "a", 16, age=100.0)
    older = running("older", "a", 16, age=1000.0)
    core = running("core", "a", 32, age=10 * HOUR)
    assert evicted(pass_over(quota, young, older, core, pending("x", "b", 16))) == {"older"}
    assert evicted(pass_over(quota, young, older, core, pending("x", "b", 32))) == {"young", "older"}


@pytest.mark.parametrize(("saved", "stopped"), [(NOW - 1, "second"), (NOW, "first"), (NOW + 9, "first")])
def test_who_saved_its_work_a_second_later_goes_first(saved: float, stopped: str) -> None:
    jobs = [running("first", "a", 16, checkpointed_at=saved), running("second", "a", 16, checkpointed_at=NOW)]
    assert evicted(pass_over(policy(), running("core", "a", 32, age=2 * HOUR), *jobs, pending("x", "b", 16))) == {
        stopped
    }


def test_of_those_that_lose_nothing_the_newest_goes_first() -> None:
    jobs = [running("core", "a", 32, age=2 * HOUR), running("early", "a", 16, age=1000.0, checkpointed_at=NOW)]
    jobs.append(running("late", "a", 16, age=500.0, checkpointed_at=NOW))
    assert evicted(pass_over(policy(), *jobs, pending("x", "b", 16))) == {"late"}


def test_of_two_that_the_others_make_unnecessary_the_one_whose_stop_costs_more_stays_with_its_restart() -> None:
    quota = policy(80, a=2.0, b=3.0)  # 32, 48
    jobs = [running("core", "a", 32, age=2 * HOUR), running("saved", "a", 16, checkpointed_at=NOW)]
    jobs += [running("small", "a", 8, age=250.0), running("large", "a", 24, age=1500.0)]
    assert evicted(pass_over(quota, *jobs, pending("x", "b", 32))) == {"small", "large"}


def test_a_job_as_large_as_its_projects_share_is_none_of_the_gangs_that_no_share_protects() -> None:
    quota = policy(64, ProjectRules(minimum_runtime_seconds=60.0))
    jobs = [running("whole", "a", 32, age=300.0), running("young", "a", 32, age=30.0)]
    assert evicted(pass_over(quota, *jobs, pending("x", "b", 32))) == {"whole"}


def test_a_job_as_large_as_what_its_project_borrowed_goes_like_a_smaller_one() -> None:
    jobs = [running("core", "a", 24, age=2 * HOUR), running("whole", "a", 16, checkpointed_at=NOW)]
    jobs += [running("part", "a", 8, age=900.0), running("own", "b", 16)]
    assert evicted(pass_over(policy(), *jobs, pending("x", "b", 8))) == {"whole"}


# The deadline


def test_a_gang_above_its_share_starts_after_a_day_by_one_recall() -> None:
    quota = policy(64, a=3.0, b=1.0)  # 48, 16
    borrowers = [running(f"r{n}", "a", 8, age=300.0) for n in range(8)]  # 64: 16 above a's 48
    gang = pending("gang", "b", 16, queued_at=NOW - 25 * HOUR)
    assert evicted(pass_over(quota, *borrowers, gang)) == {"r6", "r7"}
    larger = pending("gang", "b", 32, queued_at=NOW - 25 * HOUR)
    # 32 cannot be had from what was borrowed: nothing is drained for it meanwhile.
    assert evicted(pass_over(quota, *borrowers, larger)) == set()


@pytest.mark.parametrize(("hours", "stopped"), [(23.9, set()), (24.1, {"newer"})])
def test_before_the_deadline_a_borrower_waits_for_idle_capacity(hours: float, stopped: set[str]) -> None:
    borrowers = [running("older", "a", 24, age=400.0), running("newer", "a", 24, age=300.0)]
    own = running("own", "b", 8)
    claimant = pending("x", "b", 26, queued_at=NOW - hours * HOUR)  # with it b would hold 34 of its 32
    assert evicted(pass_over(policy(), *borrowers, own, claimant)) == stopped


def test_a_job_that_may_not_be_recalled_for_again_does_not_keep_the_next_of_its_kind_from_it() -> None:
    borrowers = [running("older", "a", 24, age=400.0), running("newer", "a", 24, age=300.0)]
    own = running("own", "b", 8)
    again = pending("again", "b", 26, queued_at=NOW - 30 * HOUR, evictions=1, evicted_at=NOW - HOUR)
    assert evicted(pass_over(policy(), *borrowers, own, again)) == set()
    plan = pass_over(policy(), *borrowers, own, again, replace(again, name="next", evictions=0))
    assert {decision.evicted_for for decision in plan.acting} == {None, "next"}


@pytest.mark.parametrize(("fifo", "recalled_for"), [(False, {"old"}), (True, set())])
def test_a_recall_is_for_the_oldest_job_unless_nobody_passes_the_one_in_front(
    fifo: bool, recalled_for: set[str]
) -> None:
    quota = policy(64, ProjectRules(fifo=fifo), a=1.0, b=1.0, c=0.0)
    borrowers = [running("older", "a", 24, age=400.0), running("newer", "a", 24, age=300.0), running("own", "b", 16)]
    urgent = pending("urgent", "c", 16, priority=1, queued_at=NOW - HOUR)
    old = pending("old", "c", 16, queued_at=NOW - 30 * HOUR)
    plan = pass_over(quota, *borrowers, urgent, old)
    assert {decision.evicted_for for decision in plan.acting} - {None} == recalled_for


def test_a_recall_spares_gangs_that_no_share_protects() -> None:
    quota = policy(64, a=1.0, b=1.0, c=2.0)  # 16, 16, 32
    gang = running("gang", "a", 64, age=300.0)
    assert evicted(pass_over(quota, gang, pending("x", "b", 32, queued_at=NOW - 30 * HOUR))) == set()


def test_the_oldest_overdue_job_starts_first_if_there_is_room() -> None:
    jobs = [pending(f"x{n}", "b", 32, queued_at=NOW - (25 + n) * HOUR, priority=5 - n) for n in range(3)]
    assert "x2" in started(pass_over(policy(a=1.0, b=0.0), *jobs))


def test_a_recall_takes_nothing_that_would_be_claimed_back_from_the_gang_at_once() -> None:
    borrowers = [running("r1", "b", 24), running("r2", "b", 24), running("r3", "b", 8), running("r4", "b", 8)]
    gang = pending("gang", "a", 40, queued_at=NOW - 25 * HOUR)
    # b holds 64 of its 32. To make 40 it would fall to 24, and one of those that were stopped would be owed its 8.
    assert evicted(pass_over(policy(64), *borrowers, gang)) == set()
    quota = policy(96, a=1.0, b=2.0)  # 32, 64: of the 40 b gives 48, and has 16 less than its share
    large = [running("r1", "b", 48), running("r2", "b", 48)]
    assert evicted(pass_over(quota, *large, gang)) == {"r1"}
    assert evicted(pass_over(quota, *large, gang, pending("x", "b", 17))) == {"r1"}
    assert evicted(pass_over(quota, *large, gang, pending("x", "b", 16))) == set()


@pytest.mark.parametrize(("units", "stopped"), [(16, {"r0"}), (17, set())])
def test_a_recall_finds_the_loans_that_cover_it_where_the_cheapest_would_be_in_the_way(
    units: int, stopped: set[str]
) -> None:
    quota = policy(56, a=2.0, b=5.0, c=0.0)  # 16, 40: b has borrowed 16
    cheap = running("cheap", "b", 8, checkpointed_at=NOW - 1)
    others = [running(f"r{n}", "b", 16, age=(n + 1) * 500.0) for n in range(3)]
    gang = pending("gang", "c", units, queued_at=NOW - 25 * HOUR)
    assert evicted(pass_over(quota, cheap, *others, gang)) == stopped


@pytest.mark.parametrize(("units", "stopped"), [(16, {"r0"}), (17, set())])
def test_a_recall_finds_the_one_loan_that_covers_it_where_two_would_be_claimed_back(
    units: int, stopped: set[str]
) -> None:
    quota = policy(60, a=1.0, b=2.0, c=0.0)  # 20, 40: b has borrowed 20
    cheap = running("cheap", "b", 12, age=100.0)
    others = [running(f"r{n}", "b", 16, age=(n + 1) * 500.0) for n in range(3)]
    claims = [pending("gang", "c", units, queued_at=NOW - 25 * HOUR), pending("next", "b", 8)]
    assert evicted(pass_over(quota, cheap, *others, *claims)) == stopped


def test_a_single_loan_that_is_not_spared_is_enough_for_a_recall() -> None:
    quota = policy(64, ProjectRules(minimum_runtime_seconds=60.0), a=1.0, b=1.0)
    own = [running("old", "a", 24, age=300.0), running("young", "a", 24, age=30.0), running("own", "b", 16)]
    gang = pending("gang", "b", 24, queued_at=NOW - 25 * HOUR)
    assert evicted(pass_over(quota, *own, gang)) == {"old"}


def test_a_job_for_which_there_can_never_be_room_does_not_keep_others_from_their_recall() -> None:
    quota = policy(64, a=3.0, b=1.0)  # 48, 16
    borrowers = [running(f"r{n}", "a", 8, age=300.0) for n in range(8)]
    never = pending("never", "b", 60, queued_at=NOW - 50 * HOUR)  # a lends 16 only, as long as it uses its own
    gang = pending("gang", "b", 16, queued_at=NOW - 25 * HOUR)
    assert evicted(pass_over(quota, *borrowers, never, gang)) == {"r6", "r7"}


def test_a_job_whose_recall_is_a_matter_of_time_is_not_passed_by_younger_ones() -> None:
    quota = policy(64, ProjectRules(minimum_runtime_seconds=60.0), a=1.0, b=1.0, c=0.0)
    young = [running("y1", "a", 24, age=3.0), running("y2", "a", 24, age=3.0)]
    old = running("old", "a", 16)
    large = pending("large", "b", 33, queued_at=NOW - 50 * HOUR)
    small = pending("small", "c", 8, queued_at=NOW - 25 * HOUR)
    assert evicted(pass_over(quota, *young, old, large, small)) == set()
    assert evicted(pass_over(quota, *young, old, small)) == {"old"}
    later = pass_over(quota, *(replace(job, started_at=NOW - 300.0) for job in young), old, large, small)
    assert {decision.evicted_for for decision in later.acting} == {None, "large"}


# Lending


def test_idle_capacity_goes_to_small_jobs_first() -> None:
    quota = policy(64, a=1.0, b=0.0, c=0.0)
    jobs = [pending("large", "b", 40, queued_at=NOW - 900), *(pending(f"small{n}", "c", 8) for n in range(4))]
    assert started(pass_over(quota, *jobs)) == {"small0", "small1", "small2", "small3"}


def test_inside_a_project_a_small_job_does_not_pass_one_of_a_higher_priority() -> None:
    quota = policy(64, a=1.0, b=0.0)
    jobs = [pending("urgent", "b", 64, priority=1), pending("small", "b", 8, priority=5)]
    assert started(pass_over(quota, *jobs)) == {"urgent"}


@pytest.mark.parametrize(("seconds", "first"), [(2 * HOUR - 1, "evicted"), (2 * HOUR, "new"), (3 * HOUR, "new")])
def test_what_was_evicted_after_hours_of_running_is_lent_to_last(seconds: float, first: str) -> None:
    quota = policy(64, a=1.0, b=0.0)
    jobs = [pending("evicted", "b", 40, evicted_seconds=seconds, evictions=1), pending("new", "b", 64)]
    assert started(pass_over(quota, *jobs)) == {first}


def test_a_long_job_does_not_stand_in_front_of_younger_ones_of_its_size() -> None:
    quota = policy(64, a=1.0, b=0.0)
    long = pending("long", "b", 40, queued_at=NOW - 900, evicted_seconds=3 * HOUR, evictions=1)
    assert started(pass_over(quota, long, pending("new", "b", 40))) == {"new"}
    # In its own project's share its age counts.
    assert started(pass_over(policy(64, b=1.0), long, pending("new", "b", 40))) == {"long"}


def test_what_a_project_gave_back_a_moment_ago_is_kept_for_its_next_job() -> None:
    recently = {"a": {"v4": ((NOW + 60.0, 24), (math.inf, 0))}}
    plan = pass_over(policy(), running("r", "b", 32), pending("x", "b", 16), held_recently=recently)
    (waiting,) = [decision for decision in plan.decisions if decision.name == "x"]
    assert waiting.reason is not None
    assert "reserved for project a until" in waiting.reason.message
    assert started(pass_over(policy(), running("r", "b", 32), pending("x", "a", 16), held_recently=recently)) == {"x"}


@pytest.mark.parametrize(("units", "expected"), [(31, {"x"}), (32, set())])
def test_a_single_unit_that_was_given_back_is_kept_too(units: int, expected: set[str]) -> None:
    borrower = pending("x", "b", units)
    assert (
        started(pass_over(policy(), running("r", "b", 32), borrower, held_recently={"a": {"v4": ((NOW, 1),)}}))
        == expected
    )


def test_recent_holdings_forget_after_five_minutes() -> None:
    recent = RecentHoldings()
    job = running("r", "a", 16)
    assert recent.note([job], 0.0, policy()) == {"a": {"v4": ((math.inf, 16),)}}
    assert recent.note([], 200.0, policy()) == {"a": {"v4": ((300.0, 16), (math.inf, 0))}}
    held = recent.note([running("s", "a", 8)], 299.0, policy())
    assert held == {"a": {"v4": ((300.0, 16), (math.inf, 8))}}
    assert recent.note([], 330.0, policy()) == {"a": {"v4": ((599.0, 8), (math.inf, 0))}}
    assert recent.note([], 600.0, policy()) == {}


def test_recent_holdings_survive_a_restart() -> None:
    recent = RecentHoldings()
    recent.note([running("r", "a", 16)], 0.0, policy())
    successor = RecentHoldings(recent.note([], 200.0, policy()))
    assert successor.note([], 300.0, policy()) == {"a": {"v4": ((300.0, 16), (math.inf, 0))}}
    assert successor.note([], 301.0, policy()) == {}


def test_recent_holdings_in_a_strange_order_are_forgotten_after_five_minutes_as_well() -> None:
    recent = RecentHoldings({"a": {"v4": ((1e9, 32), (100.0, 16))}})
    assert recent.note([], 200.0, policy()) == {"a": {"v4": ((500.0, 32), (math.inf, 0))}}
    assert recent.note([], 501.0, policy()) == {}


@pytest.mark.parametrize(
    ("rule", "measured", "kept"),
    [(None, {}, 300.0), (None, {"v4": 4.0}, 4.0), (None, {"v5e": 4.0}, 300.0), (None, {"v4": 900.0}, 300.0),
     (900.0, {"v4": 4.0}, 900.0), (0.0, {}, 0.0)],
)  # fmt: skip
def test_units_are_kept_as_long_as_a_restart_of_their_type_takes_unless_the_rules_say_otherwise(
    rule: float | None, measured: dict[str, float], kept: float
) -> None:
    quota = replace(policy(), default_rules=ProjectRules(keep_idle_seconds=rule))
    recent = RecentHoldings()
    recent.note([running("r", "a", 16)], 0.0, quota, measured)
    assert recent.note([], kept, quota, measured) == {"a": {"v4": ((kept, 16), (math.inf, 0))}}
    assert recent.note([], kept + 1, quota, measured) == {}


def test_a_file_that_keeps_units_for_a_shorter_time_counts_at_once() -> None:
    recent = RecentHoldings()
    recent.note([running("r", "a", 16)], 0.0, policy())
    short = replace(policy(), default_rules=ProjectRules(keep_idle_seconds=10.0))
    assert recent.note([], 20.0, short) == {"a": {"v4": ((30.0, 16), (math.inf, 0))}}
    assert recent.note([], 31.0, short) == {}


GAVE_BACK = ((NOW + 60.0, 8), (math.inf, 0))


def test_a_pool_is_not_kept_idle_for_projects_whose_jobs_cannot_start_on_their_part() -> None:
    recently = {"a": {"v4": GAVE_BACK}, "b": {"v4": GAVE_BACK}}
    plan = pass_over(policy(16), pending("x", "a", 16), pending("y", "b", 16), held_recently=recently)
    assert len(started(plan)) == 1


def test_a_project_does_not_keep_its_units_from_its_own_larger_job() -> None:
    recently = {"a": {"v4": GAVE_BACK}}
    assert started(pass_over(policy(16), pending("x", "a", 16), held_recently=recently)) == {"x"}


def test_units_are_kept_for_a_job_that_is_about_to_be_tried_again() -> None:
    recently = {"a": {"v4": GAVE_BACK}}
    back = pending("small", "a", 8, not_before=NOW + 20)
    plan = pass_over(policy(16), pending("x", "a", 16), back, pending("y", "b", 16), held_recently=recently)
    assert started(plan) == set()


def test_nothing_is_kept_for_a_project_of_which_nothing_starts() -> None:
    quota = replace(policy(16), project_rules={"a": ProjectRules(hold=True)})
    recently = {"a": {"v4": GAVE_BACK}}
    assert started(pass_over(quota, pending("y", "b", 16), held_recently=recently)) == {"y"}
