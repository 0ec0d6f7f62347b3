"""Jobs that await others, carried forward in time: estimates, replays under another file, the simulator by hand."""

from __future__ import annotations

from dataclasses import replace

from scheduler import JobStatus
from scheduler.simulation.forecast import JOBS_AHEAD_MAX, JOBS_BEHIND_MAX
from scheduler.simulation.simulator import SimulatedJob, Simulator
from tests.unit.scheduler.simulation.test_forecast import HOUR, NOW, job, tell
from tests.unit.scheduler.simulation.test_simulator import one
from tests.unit.scheduler.simulation.test_whatif import past, policy, told


def test_a_job_starts_when_the_one_that_it_awaits_ends() -> None:
    jobs = [job("a", 8, running_for=HOUR), job("w", 8, after=("a",))]
    eta = tell(jobs, "w", declared={"a": 3 * HOUR})["w"]
    assert (eta.p10, eta.p90, eta.why) == (NOW + 2 * HOUR, NOW + 2 * HOUR, "")


def test_a_chain_takes_as_long_as_its_jobs_together() -> None:
    jobs = [job("a", 8, running_for=0), job("b", 8, after=("a",)), job("c", 8, after=("b",)), job("w", 8, after=("c",))]
    etas = tell(jobs, "b", "w", declared={"a": HOUR, "b": 2 * HOUR, "c": 4 * HOUR})
    assert (etas["b"].p50, etas["w"].p50) == (NOW + HOUR, NOW + 7 * HOUR)


def test_after_the_end_it_waits_for_capacity_like_any_other() -> None:
    jobs = [job("a", 8, running_for=0), job("r", 8, running_for=0), job("x", 8, priority=1), job("w", 8, after=("a",))]
    eta = tell(jobs, "w", declared={"a": HOUR, "r": 3 * HOUR, "x": 4 * HOUR})["w"]
    assert eta.p50 == NOW + 3 * HOUR


def test_an_awaited_job_of_unknown_duration_leaves_it_unknown() -> None:
    eta = tell([job("a", 8, running_for=HOUR), job("w", 8, after=("a",))], "w")["w"]
    assert eta.p50 is None and "no duration estimate for a job ahead" in eta.why


def test_a_job_behind_one_that_cannot_start_is_told_so() -> None:
    jobs = [job("big", 17), job("mid", 8, after=("big",)), job("w", 8, after=("mid",)), job("x", 8, after=("gone",))]
    etas = tell(jobs, "w", "x", declared={"big": HOUR, "mid": HOUR})
    assert etas["w"].why == "big, which must end before it, is not waiting for capacity (ExceedsPool)"
    assert etas["x"].why == "the end of gone cannot be estimated"


def test_a_job_behind_too_long_a_chain_has_no_estimate() -> None:
    chain = [job("j0", 8, running_for=0)]
    chain += [job(f"j{number}", 8, after=(f"j{number - 1}",)) for number in range(1, JOBS_AHEAD_MAX + 2)]
    declared = {each.name: 60.0 for each in chain}
    etas = tell(chain, "j3", chain[-1].name, declared=declared)
    assert etas["j3"].p50 == NOW + 180
    assert etas[chain[-1].name].why == f"more than {JOBS_AHEAD_MAX} jobs must end before it"


def test_other_dependents_compete_with_it_when_their_turn_comes() -> None:
    jobs = [job("a", 16, running_for=0), job("w", 16, after=("a",)), job("first", 16, priority=1, after=("a",))]
    jobs += [job(f"other{number}", 1, after=("nobody",)) for number in range(5)]
    jobs += [job(f"later{number}", 1, priority=5, after=("w",)) for number in range(JOBS_BEHIND_MAX + 5)]
    eta = tell(jobs, "w", declared={"a": HOUR, "first": HOUR})["w"]
    assert eta.p50 == NOW + 2 * HOUR


def test_a_replay_starts_jobs_after_those_they_awaited() -> None:
    first = past("a", 8, at=HOUR, seconds=2 * HOUR)
    second = past("b", 8, at=HOUR, seconds=HOUR)
    second = replace(second, job=replace(second.job, after=("a", "ended before the window")))
    summary = told([first, second], policy(1, 1), policy(1, 3)).after
    assert summary.never == ()
    assert summary.projects["a"].wait_mean == HOUR  # one of two waited for two hours


def test_what_a_job_awaits_may_have_ended_before_it_arrives() -> None:
    first, second = one(duration=10.0), one(at=50.0)
    second = SimulatedJob(job=replace(second.job, name="k", after=("j", "m")), order="k", duration=10.0)
    third = SimulatedJob(job=replace(first.job, name="m", queued_at=60.0), order="m", duration=10.0)
    simulator = Simulator[SimulatedJob](0.0, [first, second, third])
    simulator.advance(0.0)
    simulator.start("j")
    simulator.advance(50.0)
    assert simulator.jobs["k"].after == ("m",)
    simulator.advance(60.0)
    simulator.cancel("m")
    assert (simulator.jobs["k"].after, simulator.jobs["k"].status) == ((), JobStatus.PENDING)


def test_the_end_of_a_job_is_nothing_to_who_left_before() -> None:
    first = one(duration=10.0)
    second = SimulatedJob(job=replace(first.job, name="k", after=("j",)), order="k", duration=10.0)
    simulator = Simulator[SimulatedJob](0.0, [first, second])
    simulator.advance(0.0)
    simulator.cancel("k")
    simulator.cancel("j")
    assert simulator.jobs == {}
