"""The quota file's rules of projects, acting: who may start, who goes first, and what the reasons say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from quota import Policy, ProjectRules
from scheduler import Plan, ReasonCode, Snapshot, UsageHistory, Verdict, schedule
from scheduler.simulation.policy_change import effect_of
from tests.support.scheduler_jobs import HOUR, NOW, decision, pass_over, pending, running, started


def policy(total: int = 64, **rules: ProjectRules) -> Policy:
    """Projects a and b, half of the pool each."""
    return Policy(tiers=({"v4": total},), weights={"a": {"v4": 1.0}, "b": {"v4": 1.0}}, members={}, project_rules=rules)


def waits(plan: Plan, name: str) -> tuple[ReasonCode, str, str]:
    reason = decision(plan, name).reason
    assert reason is not None
    return reason.code, reason.message, reason.unblock


# what jobs may ask for


@pytest.mark.parametrize(
    ("rules", "refused", "allowed", "message"),
    [
        (
            ProjectRules(instance_types=("tpu-v5p-*",)),
            {"instance_type": "tpu-v4-8"},
            {"instance_type": "tpu-v5p-8"},
            "instance types tpu-v5p-*, not tpu-v4-8",
        ),
        (ProjectRules(highest_priority=2), {"priority": 1}, {"priority": 2}, "priority 2 at most, not 1"),
        (ProjectRules(), {"root": True}, {}, "allow_root = false"),
        (ProjectRules(allow_bastion_jobs=False), {"instance_type": ""}, {}, "allow_bastion_jobs = false"),
    ],
)
def test_a_job_that_asks_for_more_than_its_project_may_have_waits_and_blocks_nobody(
    rules: ProjectRules, refused: dict[str, object], allowed: dict[str, object], message: str
) -> None:
    typical = {"instance_type": "tpu-v4-8"}
    jobs = (
        pending("more", "a", 8, **{**typical, "queued_at": NOW - 100 * HOUR, **refused}),
        pending("fits", "a", 8, **{**typical, **allowed}),
    )
    plan = pass_over(policy(8, a=rules), *jobs)
    assert started(plan) == {"fits"}
    assert plan.impossible == {"more"}
    code, text, unblock = waits(plan, "more")
    assert code is ReasonCode.NOT_ALLOWED
    assert message in text
    assert (
        unblock.startswith("an admin ") and "for project a in the quota file, or the job is submitted with" in unblock
    )
    assert started(pass_over(policy(16, b=rules), *jobs)) >= ({"fits"} if "root" in refused else {"more", "fits"})


def test_a_running_job_goes_on_when_its_project_may_no_longer_have_it() -> None:
    rules = ProjectRules(instance_types=(), highest_priority=5, allow_bastion_jobs=False)
    plan = pass_over(policy(8, a=rules), running("r", "a", 8, instance_type="tpu-v4-8", priority=1))
    assert decision(plan, "r").verdict is Verdict.KEEP


def test_what_is_not_allowed_is_told_beside_an_unknown_type() -> None:
    plan = pass_over(
        policy(a=ProjectRules(highest_priority=3, hold=True)), pending("x", "a", 8, demand={"v9": 1}, priority=1)
    )
    reason = decision(plan, "x").reason
    assert reason is not None
    assert (reason.code, reason.also) == (ReasonCode.UNKNOWN_TYPE, (ReasonCode.NOT_ALLOWED, ReasonCode.HELD))


# hold


def test_nothing_of_a_held_project_starts_and_what_runs_goes_on() -> None:
    quota = policy(a=ProjectRules(hold=True))
    plan = pass_over(quota, running("r", "a", 8), pending("x", "a", 8), pending("y", "b", 8))
    assert started(plan) == {"y"}
    assert decision(plan, "r").verdict is Verdict.KEEP
    code, message, unblock = waits(plan, "x")
    assert code is ReasonCode.HELD
    assert "hold = true" in message
    assert unblock == "an admin sets hold = false for project a in the quota file"


def test_a_held_projects_borrowed_capacity_still_goes_to_its_owner() -> None:
    quota = policy(a=ProjectRules(hold=True))
    plan = pass_over(quota, running("r", "a", 64), pending("x", "b", 8))
    assert decision(plan, "r").verdict is Verdict.EVICT


def test_a_job_larger_than_the_pool_of_a_held_project_is_held_first() -> None:
    plan = pass_over(policy(a=ProjectRules(hold=True)), pending("x", "a", 65))
    reason = decision(plan, "x").reason
    assert reason is not None
    assert (reason.code, reason.also) == (ReasonCode.HELD, (ReasonCode.EXCEEDS_POOL,))


def test_a_job_of_a_held_project_tells_that_its_limits_are_too_low_as_well() -> None:
    rules = ProjectRules(hold=True, borrowing_limit={"v4": 8})
    for units, also in ((40, ()), (41, (ReasonCode.EXCEEDS_PROJECT_MAX,))):
        reason = decision(pass_over(policy(a=rules), pending("x", "a", units)), "x").reason
        assert reason is not None
        assert (reason.code, reason.also) == (ReasonCode.HELD, also)


def test_a_job_that_the_settings_hold_takes_no_room_and_stops_nobody() -> None:
    plan = pass_over(policy(), running("r", "b", 64), pending("x", "a", 8, hold="no zone has v4"))
    assert decision(plan, "r").verdict is Verdict.KEEP and plan.impossible == {"x"}
    assert waits(plan, "x") == (ReasonCode.HELD, "no zone has v4", "an operator changes the daemon's settings")
    plan = pass_over(policy(), pending("x", "a", 65, hold="no zone has v4"), pending("y", "a", 64))
    assert started(plan) == {"y"}
    reason = decision(plan, "x").reason
    assert reason is not None and reason.also == (ReasonCode.EXCEEDS_POOL,)


def test_who_is_held_by_more_than_the_settings_is_told_of_that_first() -> None:
    job = pending("x", "a", 8, hold="no zone has v4")
    assert "hold = true" in waits(pass_over(policy(a=ProjectRules(hold=True)), job), "x")[1]
    assert "an operator holds the pool" in waits(pass_over(policy(), job, held=True), "x")[1]
    reason = decision(pass_over(policy(), replace(job, demand={"v9": 1})), "x").reason
    assert reason is not None
    assert (reason.code, reason.also) == (ReasonCode.UNKNOWN_TYPE, (ReasonCode.HELD,))


def test_a_project_that_does_not_exist_has_no_limits_to_be_told_of() -> None:
    quota = policy(a=ProjectRules(lending_limit={"v4": 0}))
    plan = schedule(Snapshot(policy=quota, jobs=(pending("x", "nowhere", 40),)), NOW)
    reason = decision(plan, "x").reason
    assert reason is not None
    assert (reason.code, reason.also) == (ReasonCode.NOT_MEMBER, ())


# borrowing_limit


def test_a_project_borrows_up_to_its_limit_and_the_next_job_says_what_is_missing() -> None:
    quota = policy(a=ProjectRules(borrowing_limit={"v4": 8}))
    plan = pass_over(quota, *(pending(f"x{n}", "a", 8, queued_at=NOW - 90 + n) for n in range(6)))
    assert started(plan) == {"x0", "x1", "x2", "x3", "x4"}
    reason = decision(plan, "x5").reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert "project a can use at most 40 v4 (share 32, borrowing_limit 8) and is using 40" in reason.message
    assert (dict(reason.missing), dict(reason.over_limit)) == ({}, {"v4": 8})
    assert reason.holders == ("x0", "x1", "x2", "x3", "x4")
    raised = policy(a=ProjectRules(borrowing_limit={"v4": 16}))
    assert "x5" in started(pass_over(raised, *(pending(f"x{n}", "a", 8) for n in range(6))))


def test_who_would_take_its_project_beyond_its_limit_stands_behind_all_others() -> None:
    quota = policy(a=ProjectRules(borrowing_limit={"v4": 8}))
    small = [pending(f"a{number}", "a", 4, queued_at=NOW - 60 + number) for number in range(3)]
    plan = pass_over(quota, running("r", "a", 32), running("s", "b", 32), *small, pending("b0", "b", 16))
    assert [d.name for d in plan.decisions if d.position is not None] == ["a0", "a1", "b0", "a2"]


def test_a_job_that_no_limit_ever_lets_run_says_so_and_names_the_limit_it_needs() -> None:
    plan = pass_over(policy(a=ProjectRules(borrowing_limit={"v4": 8})), pending("x", "a", 41))
    code, message, unblock = waits(plan, "x")
    assert code is ReasonCode.EXCEEDS_PROJECT_MAX
    assert "needs 41 v4; project a can use at most 40: its share of 32 and a borrowing_limit of 8" in message
    assert unblock == "an admin raises the borrowing_limit of project a for v4 to 9, or the job asks for less"
    assert plan.projects["a"].demand == {}
    # Within its own limit, it needs more from others only.
    others = policy(a=ProjectRules(borrowing_limit={"v4": 30}), b=ProjectRules(lending_limit={"v4": 8}))
    unblock = waits(pass_over(others, pending("x", "a", 48)), "x")[2]
    assert unblock == "an admin raises the lending_limit of other projects for v4 by 8, or the job asks for less"


@pytest.mark.parametrize(("limit", "recalled"), [(17, False), (18, True)])
def test_a_job_that_waited_for_a_day_is_recalled_for_only_below_the_limit(limit: int, recalled: bool) -> None:
    borrowers = [running(f"r{n}", "a", 8, age=300.0 + n) for n in range(7)]  # 24 above a's 32
    jobs = [*borrowers, running("own", "b", 8), pending("x", "b", 24, queued_at=NOW - 30 * HOUR)]
    quota = Policy(
        tiers=({"v4": 64},),
        weights={"a": {"v4": 1.0}, "b": {"v4": 0.45}, "c": {"v4": 0.55}},  # 32, 14, 17
        members={},
        project_rules={"b": ProjectRules(borrowing_limit={"v4": limit})},
    )
    plan = pass_over(quota, *jobs)
    evicted = {d.name for d in plan.decisions if d.verdict is Verdict.EVICT}
    assert bool(evicted) is recalled
    expected = ReasonCode.WAITING_FOR_PREEMPTED if recalled else ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert waits(plan, "x")[0] is expected


# priorities


def test_a_higher_priority_takes_the_place_of_a_lower_one_where_its_projects_limit_is_in_the_way() -> None:
    quota = policy(a=ProjectRules(minimum_runtime_seconds=60.0, borrowing_limit={"v4": 0}))
    low = [running("low", "a", 16, age=300.0), running("lower", "a", 8, age=300.0), running("old", "a", 8, age=400.0)]
    urgent = pending("urgent", "a", 8, priority=1)
    plan = pass_over(quota, *low, urgent)
    assert {decision.name: decision.verdict.value for decision in plan.decisions} == {
        "old": "keep",
        "low": "keep",
        "lower": "evict",
        "urgent": "start",
    }
    assert decision(plan, "urgent").message.startswith("replaces lower-priority jobs of its project")


def test_a_job_for_which_too_few_would_go_does_not_keep_a_smaller_one_from_its_place() -> None:
    quota = policy(a=ProjectRules(minimum_runtime_seconds=60.0))
    jobs = [running("low", "a", 16, age=300.0), running("high", "a", 16, priority=1), running("r", "b", 32)]
    large = pending("large", "a", 24, priority=2, queued_at=NOW - 90.0)
    small = pending("small", "a", 16, priority=2)
    plan = pass_over(quota, *jobs, large, small)
    assert {d.name: d.evicted_for for d in plan.acting} == {"low": "small", "high": None, "r": None}
    assert {d.evicted_for for d in pass_over(quota, *jobs, large).acting} == {None}
    young = replace(jobs[0], started_at=NOW - 59.0)
    assert {d.evicted_for for d in pass_over(quota, young, *jobs[1:], small).acting} == {None}


def test_each_of_a_higher_priority_takes_a_place_of_its_own_in_the_same_pass() -> None:
    quota = policy(a=ProjectRules(minimum_runtime_seconds=60.0))
    low = [running(f"low{n}", "a", 8, age=300.0 + n) for n in range(2)]
    full = [running("high", "a", 16, priority=1), running("r", "b", 32)]
    urgent = [pending(f"urgent{n}", "a", 8, priority=1, queued_at=NOW - 60 + n) for n in range(3)]
    plan = pass_over(quota, *low, *full, *urgent)
    evictions = {d.name: d.evicted_for for d in plan.acting if d.evicted_for}
    assert evictions == {"low0": "urgent0", "low1": "urgent1"}
    assert plan.promised == {"urgent0", "urgent1"}


def test_the_lowest_priority_makes_place_and_nobody_of_a_higher_one_instead() -> None:
    quota = policy(a=ProjectRules(minimum_runtime_seconds=60.0))
    jobs = [running("lowest", "a", 8, age=1000.0), running("saved", "a", 8, priority=4, checkpointed_at=NOW)]
    jobs += [running("high", "a", 16, priority=1), running("r", "b", 32)]
    plan = pass_over(quota, *jobs, pending("urgent", "a", 8, priority=1))
    assert {d.name for d in plan.acting if d.evicted_for} == {"lowest"}


@pytest.mark.parametrize(("held", "units", "stops"), [(33, 8, False), (32, 33, False), (32, 32, True)])
def test_a_place_that_is_borrowed_is_not_taken(held: int, units: int, stops: bool) -> None:
    quota = policy(a=ProjectRules(minimum_runtime_seconds=60.0))
    jobs = [running("low", "a", held, age=300.0), running("r", "b", 64 - held)]
    plan = pass_over(quota, *jobs, pending("urgent", "a", units, priority=1))
    assert any(decision.evicted_for for decision in plan.acting) is stops


# lending_limit


def test_what_a_project_does_not_lend_stays_free_for_it() -> None:
    quota = policy(a=ProjectRules(lending_limit={"v4": 8}))
    plan = pass_over(quota, *(pending(f"x{n}", "b", 8, queued_at=NOW - 90 + n) for n in range(6)))
    assert started(plan) == {"x0", "x1", "x2", "x3", "x4"}
    reason = decision(plan, "x5").reason
    assert reason is not None
    assert reason.code is ReasonCode.WAITING_FOR_PROJECT_SHARE
    assert "24 of them not lent by other projects (lending_limit)" in reason.message
    assert reason.missing == {"v4": 8}
    owner = pass_over(quota, running("r", "b", 40), pending("x", "a", 24))
    assert started(owner) == {"x"}


@pytest.mark.parametrize(("used", "expected"), [(47, set()), (48, {"x"}), (56, {"x"})])
def test_what_a_project_uses_of_its_share_is_kept_for_nobody(used: int, expected: set[str]) -> None:
    quota = policy(128, a=ProjectRules(lending_limit={"v4": 8}))  # 64 each
    held = 112 - used  # 16 are free, of which a keeps its idle units beyond 8
    assert started(pass_over(quota, running("r", "a", used), running("s", "b", held), pending("x", "b", 8))) == expected


def test_a_job_larger_than_what_others_lend_says_so() -> None:
    plan = pass_over(policy(a=ProjectRules(lending_limit={"v4": 8})), pending("x", "b", 48))
    code, message, unblock = waits(plan, "x")
    assert code is ReasonCode.EXCEEDS_PROJECT_MAX
    assert "project b can use at most 40: its share of 32 and what other projects lend of their 32" in message
    assert unblock == "an admin raises the lending_limit of other projects for v4 by 8, or the job asks for less"


# fifo


@pytest.mark.parametrize(("fifo", "first"), [(False, "second"), (True, "first")])
def test_first_in_first_out_asks_not_who_used_what(fifo: bool, first: str) -> None:
    jobs = [
        pending("first", "a", 48, user_id="busy", queued_at=NOW - 60),
        pending("second", "a", 48, user_id="idle", queued_at=NOW - 30),
    ]
    quota = policy(a=ProjectRules(fifo=fifo))
    assert started(pass_over(quota, *jobs, user_usage={"a": {"busy": 1000.0}})) == {first}


@pytest.mark.parametrize("fifo", [False, True])
def test_where_nobody_passes_the_jobs_behind_name_the_one_in_front(fifo: bool) -> None:
    quota = policy(a=ProjectRules(fifo=fifo))
    jobs = [
        running("r", "b", 32),
        pending("front", "a", 40, queued_at=NOW - 90),
        pending("small", "a", 8),
        pending("last", "a", 8, queued_at=NOW - 10),
    ]
    plan = pass_over(quota, *jobs)
    if not fifo:
        assert started(plan) == {"small", "last"}
        return
    assert started(plan) == set()
    assert waits(plan, "front")[0] is ReasonCode.WAITING_FOR_POOL
    for name in ("small", "last"):
        reason = decision(plan, name).reason
        assert reason is not None
        assert (reason.code, reason.holders) == (ReasonCode.BEHIND_HIGHER_PRIORITY, ("front",))
        assert "starts its jobs in order (fifo)" in reason.message
    # So much is missing that the one in front starts as well.
    small = decision(plan, "small").reason
    assert small is not None
    assert small.missing == {"v4": 16}


def test_a_job_that_is_tried_again_later_is_passed_by_nobody_either() -> None:
    quota = policy(a=ProjectRules(fifo=True))
    plan = pass_over(quota, pending("front", "a", 8, queued_at=NOW - 90, not_before=NOW + 60), pending("next", "a", 8))
    assert started(plan) == set()
    assert waits(plan, "front")[0] is ReasonCode.BACKOFF
    assert waits(plan, "next")[0] is ReasonCode.BEHIND_HIGHER_PRIORITY


def test_the_first_of_several_jobs_that_are_tried_again_later_is_named() -> None:
    jobs = [pending(name, "a", 8, queued_at=NOW - 90 + age, not_before=NOW + 60) for age, name in enumerate("xyz")]
    plan = pass_over(policy(a=ProjectRules(fifo=True)), *jobs, pending("next", "a", 8))
    reason = decision(plan, "next").reason
    assert reason is not None
    assert reason.holders == ("x",)


def test_a_job_that_could_never_start_does_not_stop_the_line() -> None:
    quota = policy(a=ProjectRules(fifo=True))
    plan = pass_over(quota, pending("huge", "a", 65, queued_at=NOW - 90), pending("next", "a", 8))
    assert started(plan) == {"next"}


# users


def test_inside_a_priority_the_user_who_used_less_goes_first() -> None:
    jobs = [
        running("r", "b", 32),
        pending("hog", "a", 32, user_id="heavy", queued_at=NOW - 90),
        pending("new", "a", 32, user_id="light"),
    ]
    assert started(pass_over(policy(), *jobs)) == {"hog"}
    # Who is not named used nothing.
    assert started(pass_over(policy(), *jobs, user_usage={"a": {"heavy": 1.0}})) == {"new"}
    usage = {"a": {"heavy": 1000.0, "light": 10.0}}
    assert started(pass_over(policy(), *jobs, user_usage=usage)) == {"new"}
    urgent = pending("hog", "a", 32, user_id="heavy", priority=1)
    assert started(pass_over(policy(), jobs[0], urgent, jobs[2], user_usage=usage)) == {"hog"}
    weighty = policy(a=ProjectRules(user_weights={"heavy": 200.0}))
    assert started(pass_over(weighty, *jobs, user_usage=usage)) == {"hog"}


def test_usage_counts_half_after_the_half_life() -> None:
    quota = policy(a=ProjectRules(half_life_seconds=HOUR))
    history = UsageHistory()
    history.note([], 0.0, quota)
    used = history.note([running("r", "a", 8, started_at=HOUR - 100.0)], HOUR, quota)["a"]["u"]
    assert used == pytest.approx(800.0, rel=0.01)
    assert history.note([], 2 * HOUR, quota)["a"]["u"] == pytest.approx(used / 2)


def test_usage_is_the_same_however_often_it_is_noted() -> None:
    quota = policy(a=ProjectRules(half_life_seconds=HOUR))
    job = running("r", "a", 8, started_at=1.0)
    often, once = UsageHistory(), UsageHistory()
    for second in range(1, 7201, 10):
        often.note([job], float(second), quota)
    assert often.note([job], 7201.0, quota)["a"]["u"] == pytest.approx(once.note([job], 7201.0, quota)["a"]["u"])


def test_who_noted_nothing_has_nothing_to_hand_over() -> None:
    history = UsageHistory()
    assert history.to_document() == {}
    history.restore(history.to_document())
    assert history.note([], NOW, policy()) == {}


def test_usage_outlives_its_process() -> None:
    quota = policy(a=ProjectRules(half_life_seconds=HOUR))
    job = running("r", "a", 8, started_at=NOW - 1000.0)
    history, successor = UsageHistory(), UsageHistory()
    history.note([job], NOW, quota)
    successor.restore(json.loads(json.dumps(history.to_document())))
    before, after = history.note([job], NOW + 500.0, quota), successor.note([job], NOW + 500.0, quota)
    assert after["a"]["u"] == pytest.approx(before["a"]["u"], abs=0.2)


@pytest.mark.parametrize(
    "document",
    [None, [], {}, {"at": "x", "projects": {}}, {"at": 1.0, "projects": {"a": 3}}, {"at": -1, "projects": {}}],
)
def test_what_is_not_a_usage_as_we_write_it_is_left_out(document: object) -> None:
    history = UsageHistory()
    history.restore(document)
    assert history.note([], NOW, policy()) == {}


def test_an_instant_in_the_future_does_not_stop_the_account() -> None:
    history = UsageHistory()
    history.restore({"at": NOW * 1000, "projects": {"a": {"u": 5.0}}})
    assert history.note([], NOW, policy()) == {"a": {"u": 5.0}}
    job = running("r", "a", 8)
    assert history.note([job], NOW + 10, policy())["a"]["u"] == pytest.approx(85.0, rel=0.01)


def test_what_is_nothing_any_more_is_forgotten() -> None:
    quota = policy(a=ProjectRules(half_life_seconds=HOUR))
    history = UsageHistory()
    history.restore({"at": NOW, "projects": {"a": {"u": 5.0}}})
    assert history.note([], NOW + 10 * HOUR, quota) == {}
    assert history.to_document() == {"at": NOW + 10 * HOUR, "projects": {}}


# What another file would do


def test_a_forecast_tells_whom_new_rules_stop_and_bar() -> None:
    jobs = (
        running("old", "a", 8, age=3 * HOUR),
        running("young", "a", 8),
        pending("x", "b", 40),
        pending("y", "a", 60),
    )
    after = policy(
        a=ProjectRules(maximum_runtime_seconds=2 * HOUR), b=ProjectRules(borrowing_limit={"v4": 0}, hold=False)
    )
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs, check_membership=False), after, NOW)
    assert [(stop.job.name, stop.claimant) for stop in effect.stopped] == [("old", "")]
    assert "maximum runtime of project a is 2 h" in effect.stopped[0].message
    assert [bar.job.name for bar in effect.barred_waiting] == ["x"]
    held = effect_of(
        Snapshot(policy=policy(), jobs=jobs, check_membership=False), policy(b=ProjectRules(hold=True)), NOW
    )
    assert [bar.job.name for bar in held.barred_waiting] == ["x"]
