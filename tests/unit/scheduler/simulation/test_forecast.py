"""Forecasts with certain and with unknown durations, worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from quota import Policy
from quota.rules import ProjectRules
from scheduler import Job, JobStatus, Snapshot
from scheduler.simulation.durations import Durations, JobProfile
from scheduler.simulation.forecast import DRAWS_MIN, JOBS_AHEAD_MAX, Eta, forecast
from scheduler.simulation.future import Future

NOW = 100_000.0
HOUR = 3600.0


def ruled(**rules: object) -> Policy:
    """Two projects with half of 16 units each."""
    return Policy(
        tiers=({"v4": 16},),
        weights={"a": {"v4": 0.5}, "b": {"v4": 0.5}},
        members={},
        project_rules={project: ProjectRules(**rules) for project in "ab"},
    )


POLICY = ruled(keep_idle_seconds=0.0)


def job(name: str, chips: int, *, project: str = "a", running_for: float | None = None, **fields: object) -> Job:
    running = running_for is not None
    return Job(
        **{
            "name": name,
            "project_id": project,
            "user_id": f"u-{project}",
            "queued_at": NOW - 60,
            "demand": {"v4": chips},
            "status": JobStatus.RUNNING if running else JobStatus.PENDING,
            "tier": 0 if running else None,
            "charged": {"v4": chips} if running else {},
            "started_at": NOW - running_for if running_for is not None else None,
            **fields,
        }
    )


def tell(
    jobs: list[Job],
    *asked: str,
    declared: Mapping[str, float] | None = None,
    history: list[tuple[JobProfile, float]] | None = None,
    decisions_max: int = 10_000,
    policy: Policy = POLICY,
    held: bool = False,
    seed: int = 1,
) -> Mapping[str, Eta]:
    return forecast(
        Snapshot(policy=policy, jobs=tuple(jobs), check_membership=False, held=held),
        NOW,
        Durations(history or [], declared or {}),
        asked,
        draws=30,
        draw=random.Random(seed).random,
        horizon_seconds=30 * 86_400.0,
        decisions_max=decisions_max,
    )


def test_a_job_that_fits_starts_now() -> None:
    eta = tell([job("w", 8)], "w")["w"]
    assert (eta.p10, eta.p50, eta.p90, eta.why) == (NOW, NOW, NOW, "")


def test_a_job_starts_when_the_job_that_blocks_it_ends_as_declared() -> None:
    eta = tell([job("r", 16, running_for=HOUR), job("w", 16)], "w", declared={"r": 3 * HOUR})["w"]
    assert eta.p50 == eta.p90 == NOW + 2 * HOUR


def test_jobs_ahead_run_first_for_their_declared_durations() -> None:
    jobs = [job("r", 16, running_for=0), job("first", 16, priority=1), job("w", 16)]
    eta = tell(jobs, "w", declared={"r": HOUR, "first": HOUR})["w"]
    assert eta.p50 == NOW + 2 * HOUR


def test_an_owner_waits_for_grace_only_and_the_evicted_borrower_comes_back_afterwards() -> None:
    jobs = [job("borrower", 16, running_for=HOUR), job("owner", 8, project="b"), job("w", 16)]
    declared = {"borrower": 2 * HOUR, "owner": HOUR}
    etas = tell(jobs, "owner", declared=declared)
    assert etas["owner"].p90 is not None
    assert NOW < etas["owner"].p90 <= NOW + 120


def test_an_evicted_job_repeats_its_work() -> None:
    # The owner takes all of its half; the borrower needs the whole pool, and then its whole duration.
    jobs = [job("borrower", 16, running_for=HOUR), job("owner", 8, project="b"), job("w", 16, priority=5)]
    jobs[0] = job("borrower", 16, running_for=HOUR, priority=1)
    eta = tell(jobs, "w", declared={"borrower": 2 * HOUR, "owner": HOUR})["w"]
    assert eta.p50 is not None
    assert NOW + 3 * HOUR < eta.p50 <= NOW + 3.3 * HOUR


def test_a_job_behind_one_of_unknown_duration_has_no_estimate() -> None:
    eta = tell([job("r", 16, running_for=HOUR), job("w", 16)], "w")["w"]
    assert (eta.p10, eta.p50, eta.p90, eta.unknown) == (None, None, None, 1)
    assert "no duration estimate for a job ahead" in eta.why


def test_a_job_of_unknown_duration_that_blocks_nothing_hides_nothing() -> None:
    jobs = [job("r", 8, running_for=HOUR), job("mystery", 8, running_for=HOUR), job("w", 8)]
    eta = tell(jobs, "w", declared={"r": 2 * HOUR})["w"]
    assert (eta.p90, eta.why, eta.unknown) == (NOW + HOUR, "", 1)


def test_a_job_that_does_not_wait_for_capacity_has_no_estimate() -> None:
    assert tell([job("w", 8)], "w", held=True)["w"].why == "not waiting for capacity (Held)"
    assert "ExceedsPool" in tell([job("w", 17)], "w")["w"].why
    assert "Stockout" in tell([job("w", 8, not_before=NOW + 60, stockout=True)], "w")["w"].why


def test_a_job_starts_after_its_backoff() -> None:
    assert tell([job("w", 8, not_before=NOW + 240)], "w")["w"].p90 == NOW + 240


def test_only_waiting_jobs_get_an_answer() -> None:
    assert tell([job("r", 8, running_for=0)], "r", "nobody") == {}


def crowd() -> tuple[list[Job], dict[str, float]]:
    """Sixty jobs of one unit each that end one after another, and one that wants what all of them hold."""
    small = [job(f"r{number}", 1, running_for=0, project="a") for number in range(16)]
    queued = [job(f"q{number}", 1, priority=1) for number in range(44)]
    declared = {one.name: HOUR * (1 + number / 16) for number, one in enumerate(small + queued)}
    return [*small, *queued, job("w", 16, priority=5)], declared


def test_with_few_decisions_changes_are_merged_and_the_answer_is_late() -> None:
    jobs, declared = crowd()
    fine = tell(jobs, "w", declared=declared)["w"]
    coarse = tell(jobs, "w", declared=declared, decisions_max=1300)["w"]
    assert fine.p50 is not None
    assert coarse.p50 is not None
    assert DRAWS_MIN <= coarse.draws <= fine.draws == 30
    assert fine.p50 - NOW <= coarse.p50 - NOW < 1.25 * (fine.p50 - NOW)


def test_more_decisions_than_allowed_are_not_made() -> None:
    jobs, declared = crowd()
    for allowed in (20, 100):
        eta = tell(jobs, "w", declared=declared, decisions_max=allowed)["w"]
        assert eta.p50 is None
        assert eta.draws < DRAWS_MIN
        assert eta.why == f"the forecast needs more than {allowed} steps"


def test_a_job_behind_too_many_others_has_no_estimate() -> None:
    jobs = (
        [job("r", 16, running_for=0)]
        + [job(f"q{n}", 16, priority=1) for n in range(JOBS_AHEAD_MAX + 1)]
        + [job("w", 16)]
    )
    assert f"{JOBS_AHEAD_MAX + 1} jobs are ahead of it" in tell(jobs, "w", declared={"r": HOUR})["w"].why


def test_a_smaller_job_behind_it_may_pass_and_delay_it() -> None:
    jobs = [job("r", 8, running_for=0, project="b"), job("w", 16, priority=1), job("small", 8, project="b")]
    declared = {"r": HOUR, "small": 2 * HOUR}
    assert tell(jobs, "w", declared=declared)["w"].p90 == NOW + 2 * HOUR


def test_the_same_arguments_give_the_same_answer_in_any_order_of_jobs() -> None:
    history = [(JobProfile("a", "u-a", (("v4", 16),)), HOUR * n) for n in range(1, 9)]
    jobs = [job("r", 16, running_for=0), job("x", 16, priority=1), job("w", 16)]
    first = tell(jobs, "w", history=history)
    assert tell(jobs[::-1], "w", history=history) == first
    assert first["w"].p10 is not None
    assert first["w"].p90 is not None
    assert first["w"].p10 < first["w"].p90


# -- durations ---------------------------------------------------------------------------------------------------------


def kind(project: str = "a", user: str = "u-a", chips: int = 8) -> JobProfile:
    return JobProfile(project, user, (("v4", chips),))


def totals(known: Durations, asked: Job, age: float = 0.0) -> tuple[float, ...] | None:
    left = known.remaining(asked, age)
    return None if left is None else left.totals


def test_the_nearest_history_with_five_durations_counts() -> None:
    own = [(kind(), float(n)) for n in range(1, 6)]
    colleague = [(kind(user="other"), float(n)) for n in range(11, 16)]
    other_size = [(kind(chips=4), float(n)) for n in range(21, 26)]
    other_project = [(kind(project="b"), float(n)) for n in range(31, 36)]
    w = job("w", 8)
    assert totals(Durations(own + colleague), w) == (1, 2, 3, 4, 5)
    assert totals(Durations(own[:4] + colleague[:1]), w) == (1, 2, 3, 4, 11)
    assert totals(Durations(own[:1] + other_size[:4]), w) == (1, 21, 22, 23, 24)
    assert totals(Durations(other_project), w) == (31, 32, 33, 34, 35)
    assert totals(Durations(own[:4]), w) is None


def test_only_jobs_that_ran_longer_than_this_one_count() -> None:
    known = Durations([(kind(), float(n)) for n in range(1, 11)])
    assert totals(known, job("r", 8), age=5.0) == (6, 7, 8, 9, 10)
    assert totals(known, job("r", 8), age=6.0) is None


@pytest.mark.parametrize(("age", "expected"), [(0.0, (50.0,)), (49.0, (50.0,)), (50.0, (60.0,) * 5)])
def test_a_declared_duration_counts_until_the_job_has_run_longer(age: float, expected: tuple[float, ...]) -> None:
    known = Durations([(kind(), 60.0)] * 5, {"r": 50.0})
    assert totals(known, job("r", 8), age) == expected


# -- rules of projects -------------------------------------------------------------------------------------------------


def test_a_job_of_unknown_duration_ends_at_its_projects_maximum_runtime_at_the_latest() -> None:
    policy = ruled(maximum_runtime_seconds=4 * HOUR, keep_idle_seconds=0.0)
    jobs = [job("r", 16, running_for=HOUR), job("w", 8)]
    eta = tell(jobs, "w", policy=policy)["w"]
    assert (eta.p90, eta.unknown) == (NOW + 3 * HOUR, 0)
    assert tell(jobs, "w", policy=policy, declared={"r": 9 * HOUR})["w"].p90 == NOW + 3 * HOUR
    assert tell(jobs, "w", policy=policy, declared={"r": 2 * HOUR})["w"].p90 == NOW + HOUR


def test_units_are_lent_after_their_reservation_has_expired() -> None:
    jobs = [job("r", 16, running_for=0), job("w", 16, project="b")]
    etas = [tell(jobs, "w", policy=ruled(keep_idle_seconds=kept), declared={"r": HOUR})["w"] for kept in (0.0, 600.0)]
    assert [eta.p90 for eta in etas] == [NOW + HOUR, NOW + HOUR + 600.01]


def test_an_owner_waits_for_the_borrowers_grace() -> None:
    jobs = [job("borrower", 16, running_for=HOUR), job("owner", 8, project="b")]
    etas = [tell(jobs, "owner", policy=ruled(grace_seconds=grace))["owner"] for grace in (30.0, 300.0)]
    assert [eta.p90 for eta in etas] == [NOW + 60, NOW + 330]


# -- what is on its way ------------------------------------------------------------------------------------------------


def test_an_evicted_job_waits_again_and_a_stopped_one_does_not() -> None:
    ending = job("s", 16, running_for=HOUR, status=JobStatus.STOPPING, priority=1)
    jobs = [ending, job("w", 16)]
    eta = tell(jobs, "w")["w"]
    assert (eta.p90, eta.unknown) == (NOW + 90, 0)
    jobs[0] = replace(ending, evicted_for="somebody")
    eta = tell(jobs, "w", declared={"s": HOUR})["w"]
    assert eta.p50 is not None
    assert NOW + HOUR < eta.p50 < NOW + HOUR + 300


def test_a_start_behind_the_horizon_has_that_reason() -> None:
    eta = tell([job("r", 16, running_for=0), job("w", 16)], "w", declared={"r": 31 * 86_400.0})["w"]
    assert (eta.p50, eta.why) == (None, "it may not start within 30 days")


def test_jobs_that_can_never_start_do_not_delay_others() -> None:
    etas = tell([job("huge", 17), job("w", 8)], "w")
    assert etas["w"].p90 == NOW


def test_only_jobs_that_can_never_start_leave_the_future() -> None:
    jobs = (job("huge", 17), job("r", 16, running_for=HOUR), job("w", 8))
    future = Future(Snapshot(policy=POLICY, jobs=jobs, check_membership=False), NOW, {"r": HOUR, "w": 1.0}, watched="w")
    future.decide()
    assert future.refused.keys() == {"huge"}
    assert future.jobs.keys() == {"r", "w"}


def test_a_duration_of_nothing_is_no_history() -> None:
    assert totals(Durations([(kind(), 0.0)] * 5), job("w", 8)) is None


def test_a_job_starts_after_its_cooldown() -> None:
    resting = job("w", 16, evictions=2, futile_evictions=2, evicted_at=NOW - HOUR, evicted_seconds=4 * HOUR)
    assert tell([resting], "w")["w"].p90 == NOW + HOUR


@pytest.mark.parametrize(
    ("most", "declared", "history", "left"),
    [
        (HOUR, None, (), 0.75 * HOUR),  # unknown otherwise
        (HOUR, 2 * HOUR, (), 0.75 * HOUR),
        (HOUR, 0.5 * HOUR, (), 0.25 * HOUR),
        (HOUR, None, (3 * HOUR,) * 5, 0.75 * HOUR),
        (HOUR / 8, None, (), 0.0),  # it is being stopped
        (None, 2 * HOUR, (), 1.75 * HOUR),
    ],
)
def test_a_job_is_expected_to_end_when_its_own_time_is_over(
    most: float | None, declared: float | None, history: tuple[float, ...], left: float
) -> None:
    holder = job("h", 16, running_for=HOUR / 4, max_run_seconds=most)
    eta = tell(
        [holder, job("w", 16, project="b")],
        "w",
        declared={} if declared is None else {"h": declared},
        history=[(JobProfile.of(holder), seconds) for seconds in history],
    )["w"]
    assert eta.p50 is not None
    assert eta.p50 - NOW == pytest.approx(left, abs=1)


def test_the_smaller_of_its_own_time_and_its_projects_counts() -> None:
    jobs = [job("h", 16, running_for=0.0, max_run_seconds=HOUR), job("w", 16)]
    for hours, expected in ((0.5, 0.5), (2.0, 1.0)):
        eta = tell(jobs, "w", policy=ruled(keep_idle_seconds=0.0, maximum_runtime_seconds=hours * HOUR))["w"]
        assert eta.p50 is not None
        assert eta.p50 - NOW == pytest.approx(expected * HOUR, abs=1)
