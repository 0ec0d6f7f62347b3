"""Goodput of a job that was preempted, against the scheduler's simulator."""

from __future__ import annotations

import pytest

from bastion.client.jobs.goodput import goodput
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import PastAttempt, read_result
from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for, saves_every
from scheduler import Job
from scheduler.simulation.simulator import SimulatedJob, Simulator

WORK = 2000.0
SAVES = 300.0


def test_a_job_that_was_preempted_twice_has_the_goodput_that_the_simulator_gives_it() -> None:
    cluster = Cluster()
    cluster.hosts.savings["job"] = saves_every(SAVES)
    cluster.submit("own", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("own"))
    cluster.submit("job", instance_type="tpu-v4-32")
    for number, seconds in enumerate((700.0, 500.0)):
        cluster.run_until(lambda: cluster.hosts.live("job"), steps=400)
        for _ in range(int(seconds // 10)):
            cluster.step(10.0)
        owner = f"owner-{number}"
        cluster.hosts.scripts[owner] = runs_for(30)
        cluster.submit(owner, user="bob", project="b", instance_type="tpu-v4-32")
        cluster.run_until(lambda owner=owner: cluster.result(owner), steps=200)
    record = cluster.record("job")
    assert record is not None
    assert [attempt.cause.value for attempt in record.attempts] == ["evicted", "evicted"]
    # The third attempt does what the simulator's job has not saved.
    simulator = _simulate(record.queued_at, [PastAttempt.of(attempt) for attempt in record.attempts])
    left = WORK - simulator.simulated.saved
    cluster.hosts.scripts["job"] = runs_for(left)
    cluster.run_until(lambda: cluster.result("job"), steps=1500)
    result = read_result(cluster.store.get(keys.complete("job")).data, name="job")
    found = goodput(JobInfo(name="job", uid=record.uid, stage=Stage.COMPLETED, result=result), cluster.clock.now())
    assert found is not None
    assert found.productive == pytest.approx(WORK, abs=1.0)
    assert found.lost == pytest.approx(simulator.lost, abs=1.0)
    last = result.attempts[-1].ended_at
    assert last is not None
    assert found.total == pytest.approx(last - record.queued_at)


def test_a_pause_of_the_daemon_after_the_command_has_ended_is_not_productive() -> None:
    cluster = Cluster()
    cluster.hosts.scripts["job"] = runs_for(300.0)
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.step(250.0)
    for _ in range(60):  # the daemon is frozen
        cluster.hosts.step([*cluster.slices.live_slices()])
        cluster.clock.advance(10.0)
    cluster.run_until(lambda: cluster.result("job"))
    result = read_result(cluster.store.get(keys.complete("job")).data, name="job")
    found = goodput(JobInfo(name="job", uid=result.uid, stage=Stage.COMPLETED, result=result), cluster.clock.now())
    assert found is not None
    assert found.productive == pytest.approx(300.0, abs=15.0)
    assert found.restarting > 500.0


class _Account(Simulator[SimulatedJob]):
    """What an eviction loses."""

    def __init__(self, queued_at: float) -> None:
        job = Job(name="job", project_id="a", user_id="alice", queued_at=queued_at, demand={"v4": 32})
        self.simulated = SimulatedJob(job=job, order=0, duration=WORK, checkpoint=SAVES)
        self.lost = 0.0
        super().__init__(queued_at, [self.simulated])

    def _eviction(self, simulated: SimulatedJob) -> dict[str, object]:
        self.lost += simulated.progress(self.now) - simulated.checkpointed(self.now)
        return super()._eviction(simulated)


def _simulate(queued_at: float, attempts: list[PastAttempt]) -> _Account:
    simulator = _Account(queued_at)
    simulator.advance(queued_at)
    for attempt in attempts:
        assert attempt.running_since is not None
        assert attempt.stopped_at is not None
        simulator.advance(attempt.running_since)
        simulator.start("job")
        simulator.advance(attempt.stopped_at)
        simulator.evict("job")
    return simulator


def test_a_wait_that_a_cancel_ended_is_no_time_with_machines() -> None:
    cluster = Cluster()
    cluster.slices.waits[""] = "ACCEPTED"
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.created)
    cluster.settle(60)
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    result = read_result(cluster.store.get(keys.complete("job")).data, name="job")
    found = goodput(JobInfo(name="job", uid=result.uid, stage=Stage.COMPLETED, result=result), cluster.clock.now())
    assert found is not None
    assert found.waiting == pytest.approx(found.total, abs=2.0)
    assert found.total > 50
