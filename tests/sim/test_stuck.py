"""A job that gives no sign of life: restarted in place out of a budget of its own, and failed after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bastion.client.jobs.goodput import goodput
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import Result, read_result
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.job_record import JobRecord
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for, saves_every

FOUR_HOSTS = "tpu-v4-32"
QUIET = 60


def record(cluster: Cluster) -> JobRecord:
    found = cluster.record("job")
    assert found is not None, cluster.describe()
    return found


def tries(cluster: Cluster) -> list[int]:
    return [began.try_number for began in cluster.hosts.began if began.host == 0]


def running(max_tries: int | None = None, signs: Callable[[int, float], bool] | None = None) -> Cluster:
    """A job whose four hosts run; by default all of them say that they are stuck after 100 s."""
    cluster = Cluster()
    cluster.hosts.signs["job"] = signs or (lambda _host, elapsed: elapsed >= 100)
    cluster.submit("job", instance_type=FOUR_HOSTS, max_tries=max_tries, stuck_after_seconds=QUIET)
    cluster.run_until(lambda: len(cluster.hosts.began) == 4)
    return cluster


def test_a_stuck_job_is_restarted_in_place_without_a_try_and_without_an_attempt() -> None:
    cluster = running()
    cluster.run_until(lambda: len(cluster.hosts.began) == 8)
    assert cluster.hosts.dumped == [("job", host, 1) for host in range(4)]
    assert len(cluster.slices.created) == 1
    cluster.hosts.scripts["job"] = runs_for(20)
    cluster.run_until(lambda: cluster.result("job"))
    [attempt] = cluster.result("job")["attempts"]  # type: ignore[index]
    [first] = attempt["tries"]
    assert (attempt["cause"], first["stuck"], first.get("exit_code")) == ("succeeded", True, None)
    found = record_of_result(cluster)
    assert (found.outcome, found.exit_code) == ("succeeded", 0)
    lines = [line for line in cluster.history("job") if "stuck" in line]
    assert len(lines) == 1
    assert lines[0].endswith(
        "try 1 is stuck: no output, checkpoint or step on any worker for 1m (--stuck_after); "
        "restarting the command (1 of 3 in a row)"
    )


def record_of_result(cluster: Cluster) -> Result:
    return read_result(cluster.store.get(keys.complete("job")).data, name="job")


def test_one_host_with_signs_keeps_the_job_alive() -> None:
    cluster = running(signs=lambda host, elapsed: host > 0 and elapsed >= 10)
    cluster.settle(300)
    assert tries(cluster) == [1]


def test_hosts_that_have_succeeded_do_not_save_a_stuck_peer() -> None:
    cluster = running(signs=lambda host, elapsed: host == 0 and elapsed >= 100)
    cluster.hosts.scripts["job"] = lambda host, elapsed: 0 if host > 0 and elapsed >= 30 else None
    cluster.run_until(lambda: len(cluster.hosts.began) == 8)
    assert {began.try_number for began in cluster.hosts.began[4:]} == {2}
    assert len(cluster.slices.created) == 1


def test_a_host_that_still_stores_the_output_of_a_failed_command_is_a_failure() -> None:
    cluster = running(signs=lambda host, elapsed: host > 0 and elapsed >= 10)
    cluster.hosts.storing["job", 0] = 50
    cluster.hosts.scripts["job"] = lambda host, elapsed: 7 if host == 0 and elapsed >= 30 else None
    cluster.run_until(lambda: cluster.result("job"))
    assert (cluster.result("job")["exit_code"], cluster.hosts.dumped) == (7, [])  # type: ignore[index]


def test_a_job_that_is_stuck_again_and_again_fails_as_stuck() -> None:
    cluster = running(max_tries=5)
    cluster.run_until(lambda: cluster.result("job"), steps=800)
    found = record_of_result(cluster)
    assert tries(cluster) == [1, 2, 3, 4]
    assert (found.outcome, found.exit_code) == ("failed", limits.STUCK_EXIT_CODE)
    assert found.message == (
        "Stuck: no output, checkpoint or step on any worker for 1m (--stuck_after), 4 times in a row; "
        "the log has the stacks of its processes"
    )
    [attempt] = found.attempts
    assert attempt.cause == "stuck"
    assert [each.stuck for each in attempt.tries] == [True] * 3
    assert cluster.hosts.dumped == [("job", host, number) for number in range(1, 5) for host in range(4)]


def test_tries_and_stuck_restarts_do_not_pay_for_each_other() -> None:
    """Three failures are one more than two tries allow; the stuck try between them counts for nothing."""
    cluster = running(max_tries=2)
    cluster.run_until(lambda: tries(cluster) == [1, 2])
    cluster.hosts.signs.clear()
    cluster.hosts.scripts["job"] = runs_for(10, code=3)
    cluster.run_until(lambda: cluster.result("job"))
    found = record_of_result(cluster)
    assert tries(cluster) == [1, 2, 3]
    assert (found.exit_code, [each.stuck for each in found.attempts[0].tries]) == (3, [True, False])
    assert any("try 2 of 3 failed" in line for line in cluster.history("job"))


def test_the_count_of_tries_goes_on_in_the_next_attempt() -> None:
    cluster = running(max_tries=2)
    cluster.run_until(lambda: tries(cluster) == [1, 2])
    cluster.slices.lose(cluster.slices.created[0].ref.name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2)
    cluster.hosts.signs.clear()
    cluster.hosts.scripts["job"] = runs_for(10, code=3)
    cluster.run_until(lambda: cluster.result("job"))
    assert tries(cluster) == [1, 2, 2, 3]
    assert record_of_result(cluster).exit_code == 3


def test_a_long_life_before_it_resets_the_count() -> None:
    cluster = running(signs=lambda _host, elapsed: elapsed >= limits.STUCK_RESET_SECONDS + 2 * QUIET)
    for number in range(2, limits.STUCK_RESTARTS_MAX + 4):
        while len(tries(cluster)) < number:
            cluster.step(30.0)
    assert record(cluster).stuck_in_a_row == 1


def test_a_host_that_is_lost_when_the_job_is_stuck_is_the_infrastructures_doing() -> None:
    cluster = running()
    cluster.run_until(lambda: record(cluster).attempt.restart is not None)  # type: ignore[union-attr]
    cluster.slices.lose(cluster.slices.created[0].ref.name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2)
    found = record(cluster)
    assert found.attempts[0].cause.value == "infrastructure"
    assert (found.failed_tries, found.stuck_tries) == (0, 0)


def test_a_host_that_cannot_end_its_stuck_command_leads_to_other_machines_and_counts_as_stuck() -> None:
    cluster = running()

    def signs(host: int, elapsed: float) -> bool:
        if host == 2 and elapsed >= 100:
            cluster.hosts.stuck.add(("job", 2))  # it says that it is stuck, and hears nothing any more
        return elapsed >= 100

    cluster.hosts.signs["job"] = signs
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=400)
    found = record(cluster)
    assert found.attempts[0].cause.value == "infrastructure"
    assert "worker 2 did not end try 1 in time" in found.attempts[0].message
    assert found.stuck_in_a_row == 1


def test_a_daemon_that_was_dead_meanwhile_decides_by_what_the_hosts_say_now() -> None:
    quiet = {"now": True}
    cluster = running(signs=lambda _host, elapsed: elapsed >= 30 and quiet["now"])
    live = [*cluster.slices.live_slices()]
    cluster.clock.advance(3600)
    quiet["now"] = False
    cluster.hosts.step(live)
    cluster.restart_daemon()
    cluster.settle(50)
    assert tries(cluster) == [1]
    quiet["now"] = True
    cluster.run_until(lambda: tries(cluster) == [1, 2])


@pytest.mark.parametrize("when", ["decided", "ordered", "waiting"])
def test_a_restarted_daemon_goes_on_where_the_last_one_died(when: str) -> None:
    cluster = running()
    cluster.run_until(lambda: record(cluster).attempt.restart is not None)  # type: ignore[union-attr]
    if when != "decided":
        cluster.daemon.tick()
    if when == "waiting":
        cluster.hosts.step([*cluster.slices.live_slices()])
    cluster.restart_daemon()
    cluster.run_until(lambda: tries(cluster) == [1, 2])
    cluster.run_until(lambda: record(cluster).stuck_tries == 1)
    assert (record(cluster).failed_tries, record(cluster).stuck_in_a_row) == (1, 1)


def test_the_time_of_a_stuck_try_is_lost_from_its_last_checkpoint_on() -> None:
    cluster = running(signs=lambda _host, elapsed: elapsed >= 400)
    cluster.hosts.savings["job"] = lambda host, elapsed: saves_every(100)(host, min(elapsed, 350.0))
    cluster.run_until(lambda: tries(cluster) == [1, 2], steps=600)
    cluster.hosts.scripts["job"] = runs_for(50)
    cluster.run_until(lambda: cluster.result("job"))
    result = record_of_result(cluster)
    found = goodput(JobInfo(name="job", uid=result.uid, stage=Stage.COMPLETED, result=result), cluster.clock.now())
    assert found is not None
    assert found.productive == pytest.approx(350, abs=10)
    assert found.lost == pytest.approx(100, abs=10)


def test_an_evicted_and_a_cancelled_job_show_no_stacks() -> None:
    cluster = running(signs=lambda _host, _elapsed: False)
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    assert cluster.hosts.dumped == []


def test_the_status_says_how_often_it_was_stuck() -> None:
    cluster = running()
    cluster.run_until(lambda: tries(cluster) == [1, 2])
    cluster.settle(2)
    [job] = cluster.json(keys.STATUS)["jobs"]
    assert (job["try_number"], job["max_tries"], job["stuck_tries"]) == (2, 2, 1)
