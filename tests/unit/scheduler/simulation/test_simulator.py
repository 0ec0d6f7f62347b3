"""The simulator by hand: what happens to one job, and when."""

from __future__ import annotations

import pytest

from scheduler import Job, JobStatus
from scheduler.simulation.simulator import NEVER, SimulatedJob, Simulator


class Slow(Simulator[SimulatedJob]):
    """Stopping takes 30 s."""

    def stopping_seconds(self, _job: Job) -> float:
        return 30.0


class SlowAndBusy(Slow):
    runs_until_gone = True


def one(*, at: float = 0.0, duration: float = 100.0, checkpoint: float = 0.0) -> SimulatedJob:
    job = Job(name="j", project_id="a", user_id="ann", queued_at=at, demand={"v4": 8})
    return SimulatedJob(job=job, order="j", duration=duration, checkpoint=checkpoint)


def begun(kind: type[Simulator[SimulatedJob]], job: SimulatedJob) -> Simulator[SimulatedJob]:
    simulator = kind(0.0, [job])
    simulator.advance(0.0)
    simulator.start("j")
    return simulator


def test_a_job_arrives_runs_and_ends() -> None:
    job = one(at=5.0)
    simulator = Simulator[SimulatedJob](0.0, [job])
    assert (simulator.next_change(), simulator.jobs) == (5.0, {})
    simulator.advance(6.0)
    assert simulator.jobs["j"].status is JobStatus.PENDING
    simulator.start("j", 1)
    assert (job.job.tier, job.job.charged, job.job.started_at) == (1, {"v4": 8}, 6.0)
    assert simulator.next_change() == 106.0
    simulator.advance(110.0)
    assert (simulator.jobs, job.end, simulator.next_change()) == ({}, 106.0, NEVER)


def test_an_evicted_job_holds_its_capacity_until_it_is_gone_and_begins_again() -> None:
    job = one()
    simulator = begun(Slow, job)
    simulator.advance(40.0)
    simulator.evict("j", "k")
    assert (job.job.status, job.job.evicted_for, job.job.charged) == (JobStatus.STOPPING, "k", {"v4": 8})
    assert (job.job.evictions, job.job.futile_evictions, job.job.evicted_at) == (1, 1, 40.0)
    # Its end at 100 is void.
    assert simulator.next_change() == 70.0
    simulator.advance(70.0)
    assert (job.job.status, job.job.charged, job.job.waiting_since) == (JobStatus.PENDING, {}, 70.0)
    assert simulator.next_change() == NEVER
    simulator.start("j")
    assert simulator.next_change() == 170.0


@pytest.mark.parametrize(("kind", "saved", "ran"), [(Slow, 30.0, 50.0), (SlowAndBusy, 60.0, 80.0)])
def test_an_eviction_counts_when_the_work_stops(kind: type[Simulator[SimulatedJob]], saved: float, ran: float) -> None:
    job = one(checkpoint=30.0)
    simulator = begun(kind, job)
    simulator.advance(50.0)
    simulator.evict("j")
    simulator.advance(80.0)
    assert (job.saved, job.job.futile_evictions, job.job.evicted_seconds) == (saved, 0, ran)
    simulator.start("j")
    assert simulator.next_change() == 80.0 + 100.0 - saved


def test_an_eviction_that_takes_no_time_lets_the_job_wait_at_once_and_a_restart_costs() -> None:
    job = one()
    simulator = begun(Simulator, job)
    simulator.restart_overhead = 7.0
    simulator.evict("j")
    assert job.job.status is JobStatus.PENDING
    simulator.start("j")
    assert simulator.next_change() == 107.0
    assert job.progress(17.0) == 10.0


def test_checkpoints_become_known_on_request_and_never_of_an_ended_job() -> None:
    job = one(duration=70.0, checkpoint=30.0)
    simulator = begun(Simulator, job)
    simulator.advance(65.0)
    assert job.job.checkpointed_at is None
    simulator.note_checkpoints()
    assert job.job.checkpointed_at == 60.0
    simulator.advance(95.0)
    simulator.note_checkpoints()
    assert simulator.jobs == {}


def test_a_cancelled_job_is_gone_for_good() -> None:
    waiting = Simulator[SimulatedJob](0.0, [one()])
    waiting.advance(0.0)
    waiting.cancel("j")
    assert waiting.jobs == {}
    running = begun(Slow, one())
    running.evict("j")
    running.cancel("j")
    running.advance(29.0)
    assert running.jobs["j"].evicted_for is None
    running.advance(30.0)
    assert running.jobs == {}
    stopped = begun(Slow, one())
    stopped.cancel("j")
    assert (stopped.next_change(), stopped.jobs["j"].status) == (30.0, JobStatus.STOPPING)


def test_a_promise_lasts_until_the_next_one_or_the_start() -> None:
    simulator = Simulator[SimulatedJob](0.0, [one()])
    simulator.advance(0.0)
    simulator.promise(frozenset({"j", "gone"}))
    assert simulator.jobs["j"].promised
    simulator.promise(frozenset())
    assert not simulator.jobs["j"].promised
    simulator.start("j")
    simulator.promise(frozenset({"j"}))
    assert not simulator.jobs["j"].promised


def test_a_wake_up_is_a_change_in_which_nothing_happens() -> None:
    simulator = begun(Simulator, one())
    simulator.wake(10.0)
    simulator.wake(NEVER)
    assert simulator.next_change() == 10.0
    simulator.advance(10.0)
    assert simulator.next_change() == 100.0
