"""Whose failure it was: the user's, the infrastructure's, nobody's for want of capacity, or for good."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import Script, runs_for

FOUR_HOSTS = "tpu-v4-32"


def fails_on(hosts: dict[int, tuple[float, int]]) -> Script:
    """These hosts' commands end after so long with that code, the others' go on."""

    def script(host: int, elapsed: float) -> int | None:
        after, code = hosts.get(host, (float("inf"), 0))
        return code if elapsed >= after else None

    return script


def attempt(cluster: Cluster, name: str = "job") -> Attempt:
    record = cluster.record(name)
    assert record is not None
    assert record.attempt is not None, cluster.describe()
    return record.attempt


def result(cluster: Cluster, *, steps: int = 300) -> dict[str, Any]:
    cluster.run_until(lambda: cluster.result("job"), steps=steps)
    found = cluster.result("job")
    assert found is not None
    return found


def running(**spec: Any) -> Cluster:
    """A job whose four hosts run."""
    cluster = Cluster()
    cluster.submit("job", instance_type=FOUR_HOSTS, **spec)
    cluster.run_until(lambda: len(cluster.hosts.began) == 4)
    cluster.settle(2)
    return cluster


# -- peers of a lost host ---------------------------------------------------------------------------------------------


def test_peers_that_fail_before_a_hosts_silence_is_known_are_not_at_fault() -> None:
    cluster = running()
    cluster.hosts.deaf.add(("job", 0))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1), 2: (0, 134), 3: (0, 1)})
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=300)
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert (past.cause.value, past.failed_worker, past.exit_code) == ("infrastructure", 0, None)
    assert "worker 0 sent no heartbeat for" in past.message
    assert "also: worker 1 exited with code 1" in past.message


def test_peers_that_fail_before_the_api_tells_of_the_loss_are_not_at_fault() -> None:
    cluster = running()
    cluster.hosts.deaf.add(("job", 0))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1), 2: (0, 1), 3: (0, 1)})
    cluster.settle(5)
    assert attempt(cluster).ending is not None
    assert cluster.slices.deleted == []
    cluster.slices.lose(cluster.slices.created[0].ref.name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=40)
    assert cluster.record("job").attempts[0].cause.value == "infrastructure"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "error", [host_errors.PREEMPTED, host_errors.MAINTENANCE, host_errors.HOST_SHUT_DOWN, host_errors.PROXY_FAILED]
)
def test_a_host_that_says_it_is_taken_away_makes_its_peers_failures_nobodys(error: str) -> None:
    cluster = running()
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1), 2: (0, 1), 3: (0, 1)})
    cluster.step()
    cluster.hosts.errors["job", 0] = error
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=40)
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert (past.cause.value, past.failed_worker) == ("infrastructure", 0)
    assert error in past.message


def test_a_host_that_was_shut_down_without_a_word_is_explained_by_what_became_of_its_node() -> None:
    cluster = running()
    name = cluster.slices.created[0].ref.name
    cluster.hosts.errors["job", 0] = host_errors.HOST_SHUT_DOWN
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.slices.lose(name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=40)
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert past.message == f"worker 0 failed: HostShutDown; {name} was lost: preempted (simulated)"


def test_a_failure_stays_the_users_when_the_others_stop_as_they_are_told() -> None:
    cluster = running()
    cluster.hosts.scripts["job"] = fails_on({2: (0, 7)})
    end = result(cluster, steps=10)
    assert (end["outcome"], end["exit_code"], end["failed_worker"]) == ("failed", 7, 2)
    assert end["message"] == "worker 2 exited with code 7"


def test_hosts_that_have_all_ended_by_themselves_are_believed_whatever_becomes_of_their_nodes() -> None:
    cluster = running()
    cluster.hosts.scripts["job"] = runs_for(0, code=3)
    cluster.hosts.step(cluster.slices.live_slices())
    cluster.slices.lose(cluster.slices.created[0].ref.name)
    assert result(cluster, steps=10)["exit_code"] == 3


def test_a_host_that_never_gives_its_last_word_is_lost_though_it_beats() -> None:
    cluster = running()
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1)})
    cluster.hosts.stuck.add(("job", 3))
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=300)
    [past] = cluster.record("job").attempts  # type: ignore[union-attr]
    assert (past.cause.value, past.failed_worker) == ("infrastructure", 3)


def test_a_restarted_daemon_settles_whose_failure_it_was() -> None:
    cluster = running()
    cluster.hosts.deaf.add(("job", 0))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1)})
    cluster.settle(5)
    cluster.restart_daemon()
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=300)
    assert cluster.record("job").attempts[0].cause.value == "infrastructure"  # type: ignore[union-attr]


# -- who failed first -------------------------------------------------------------------------------------------------


def test_the_host_that_failed_first_is_named_though_its_output_is_stored_last() -> None:
    cluster = running()
    cluster.hosts.storing["job", 2] = 40
    cluster.hosts.scripts["job"] = fails_on({2: (0, 9), 1: (4.5, 1)})
    end = result(cluster)
    assert (end["exit_code"], end["failed_worker"]) == (9, 2)
    assert end["attempts"][0]["failed_worker"] == 2


def test_the_host_that_failed_first_is_named_though_its_news_come_last() -> None:
    cluster = running()
    cluster.hosts.scripts["job"] = fails_on({1: (20, 1), 2: (10, 9)})
    cluster.hosts.deaf.add(("job", 2))
    cluster.run_until(lambda: attempt(cluster).ending)
    assert attempt(cluster).ending.failed_worker == 1  # type: ignore[union-attr]
    host = cluster.hosts._hosts[cluster.slices.created[0].ref.name, 0][2]
    cluster.hosts.deaf.clear()
    assert host.began is not None
    host.ended, host.exit_code = host.began + 10, 9
    cluster.hosts._end(host, host.phase.EXITED, 9)
    assert result(cluster)["failed_worker"] == 2


def test_a_single_host_that_stores_its_output_is_waited_for(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.hosts.storing["job", 0] = 200
    cluster.hosts.scripts["job"] = runs_for(2, code=5)
    cluster.run_until(lambda: cluster.hosts.began)
    cluster.settle(150)
    assert cluster.slices.deleted == []
    assert result(cluster)["exit_code"] == 5


def test_hosts_that_store_their_output_are_not_waited_for_without_end() -> None:
    cluster = running()
    for host in range(4):
        cluster.hosts.storing["job", host] = 1e9
    cluster.hosts.scripts["job"] = runs_for(0, code=5)
    for _ in range(int(limits.OUTPUT_FINAL_SECONDS / 5) + 30):
        cluster.step(5)
    assert result(cluster, steps=1)["exit_code"] == 5


def test_a_host_that_never_came_up_is_at_fault_if_its_peers_waited_for_it() -> None:
    for waited, expected in ((limits.MISSING_HOST_SECONDS + 10, "infrastructure"), (5.0, "failed")):
        cluster = Cluster()
        cluster.hosts.deaf.add(("job", 3))
        cluster.hosts.scripts["job"] = fails_on(dict.fromkeys(range(3), (waited, 1)))
        cluster.submit("job", instance_type=FOUR_HOSTS)
        cluster.run_until(lambda c=cluster: c.slices.deleted, steps=300)  # type: ignore[misc]
        cluster.run_until(lambda c=cluster: len(c.slices.created) == 2 or c.result("job"), steps=40)  # type: ignore[misc]
        cause = "failed" if cluster.result("job") else cluster.record("job").attempts[0].cause.value  # type: ignore[union-attr]
        assert cause == expected


# -- tries ------------------------------------------------------------------------------------------------------------


def tries_of(cluster: Cluster) -> list[tuple[int, int]]:
    """Every command that began, as (try, host)."""
    return [(began.try_number, began.host) for began in cluster.hosts.began]


def test_a_failed_command_runs_again_on_the_same_nodes_and_no_host_is_ahead() -> None:
    cluster = running(max_tries=3)
    cluster.hosts.scripts["job"] = fails_on({1: (0, 4)})
    cluster.hosts.later_scripts["job", 2] = runs_for(2)
    end = result(cluster)
    assert (end["outcome"], len(cluster.slices.created)) == ("succeeded", 1)
    assert tries_of(cluster) == [(t, host) for t in (1, 2) for host in range(4)]
    [told] = end["attempts"]
    assert [(t["number"], t["exit_code"], t["failed_worker"]) for t in told["tries"]] == [(1, 4, 1)]
    assert any("try 1 of 3 failed: worker 1 exited with code 4" in line for line in cluster.history("job"))


def test_the_last_try_ends_the_job_with_its_own_code() -> None:
    cluster = running(max_tries=2)
    cluster.hosts.scripts["job"] = fails_on({1: (0, 4)})
    cluster.hosts.later_scripts["job", 2] = fails_on({3: (1, 6)})
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], end["failed_worker"]) == ("failed", 6, 3)
    assert len(end["attempts"]) == 1


def test_no_host_begins_a_try_while_another_is_still_at_the_one_before() -> None:
    cluster = running(max_tries=2)
    cluster.hosts.deaf.add(("job", 3))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 4)})
    cluster.settle(20)
    assert tries_of(cluster)[4:] == []
    assert attempt(cluster).restart is not None
    cluster.hosts.deaf.clear()
    cluster.settle(5)
    assert tries_of(cluster)[4:] == [(2, host) for host in range(4)]


def test_a_try_that_failed_beside_a_lost_host_is_not_counted() -> None:
    cluster = running(max_tries=2)
    cluster.hosts.deaf.add(("job", 0))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 1)})
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=300)
    record = cluster.record("job")
    assert record is not None
    assert [past.cause.value for past in record.attempts] == ["infrastructure"]
    assert (record.failed_tries, attempt(cluster).try_number) == (0, 1)


def test_tries_are_counted_over_all_attempts() -> None:
    cluster = running(max_tries=3)
    cluster.hosts.scripts["job"] = fails_on({1: (0, 4)})
    cluster.hosts.later_scripts["job", 2] = runs_for(1e9)
    cluster.run_until(lambda: (2, 3) in tries_of(cluster))
    cluster.settle(2)
    cluster.slices.lose(cluster.slices.created[0].ref.name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=60)
    cluster.run_until(lambda: len(cluster.hosts.began) == 12)
    assert tries_of(cluster)[8:] == [(2, host) for host in range(4)]


@pytest.mark.parametrize(
    "error",
    [
        host_errors.SETUP_FAILED,
        host_errors.PROXY_REFUSED,
        host_errors.INPUT_MISSING,
        host_errors.INPUT_INVALID,
        host_errors.INPUT_CHANGED,
        host_errors.OUTPUT_REFUSED,
    ],
)
def test_what_fails_before_the_command_by_the_users_doing_is_followed_by_no_try(error: str) -> None:
    cluster = running(max_tries=3)
    cluster.hosts.errors["job", 2] = error
    end = result(cluster)
    assert (end["outcome"], end["exit_code"], end["failed_worker"]) == ("failed", 1, 2)
    assert error in end["message"]
    assert len(end["attempts"]) == 1


@pytest.mark.parametrize("after", range(1, 14))
def test_a_daemon_that_dies_between_two_tries_runs_none_twice(cluster: Cluster, after: int) -> None:
    cluster.hosts.scripts["job"] = runs_for(2, code=4)
    cluster.hosts.later_scripts["job", 2] = runs_for(2)
    cluster.submit("job", instance_type="tpu-v4-16", max_tries=2)
    cluster.settle(after)
    cluster.restart_daemon()
    end = result(cluster)
    assert (end["outcome"], len(end["attempts"])) == ("succeeded", 1)
    assert tries_of(cluster) == [(t, host) for t in (1, 2) for host in range(2)]


def test_a_cancel_between_two_tries_is_obeyed() -> None:
    cluster = running(max_tries=5)
    cluster.hosts.deaf.add(("job", 3))
    cluster.hosts.scripts["job"] = fails_on({1: (0, 4)})
    cluster.run_until(lambda: attempt(cluster).restart)
    cluster.hosts.deaf.clear()
    cluster.cancel("job")
    assert result(cluster)["outcome"] == "cancelled"
    assert cluster.hosts.live("job") == []


# -- pauses -----------------------------------------------------------------------------------------------------------


def pauses(cluster: Cluster, cause: str) -> list[float]:
    """Between the end of each attempt that ended so and the start of the one that followed."""
    record = cluster.record("job")
    assert record is not None
    return [b.started_at - a.ended_at for a, b in pairwise(record.attempts) if a.cause.value == cause]


def test_pauses_after_losses_grow_and_differ_from_job_to_job() -> None:
    found = {}
    for name in ("one", "two"):
        cluster = Cluster()
        cluster.submit(name, instance_type="tpu-v4-16")
        waits = []
        for number in range(4):
            cluster.run_until(lambda n=number, c=cluster: len(c.slices.created) == n + 1, steps=120)  # type: ignore[misc]
            cluster.slices.put_into(cluster.slices.created[-1].ref.name, GangState.LOST)
            cluster.run_until(lambda c=cluster, n=name: c.status(n) == "PENDING")  # type: ignore[misc]
            record = cluster.record(name)
            assert record is not None
            assert record.not_before is not None
            waits.append(record.not_before - record.attempts[-1].ended_at)
        for number, wait in enumerate(waits):
            most = limits.INFRASTRUCTURE_BACKOFF_SECONDS * 2**number
            assert 0.75 * most <= wait <= most
        found[name] = waits
    assert found["one"] != found["two"]


def test_a_stockout_is_waited_out_with_pauses_of_at_most_five_minutes_and_for_ever(cluster: Cluster) -> None:
    cluster.slices.stockouts = 10**6
    cluster.submit("job", instance_type="tpu-v4-16")
    for _ in range(900):
        cluster.step(5)
    record = cluster.record("job")
    assert record is not None
    waits = pauses(cluster, "capacity")
    assert len(waits) >= 12
    assert waits[0] <= 15
    assert limits.CAPACITY_BACKOFF_MAX_SECONDS * 0.7 <= max(waits) <= limits.CAPACITY_BACKOFF_MAX_SECONDS + 10
    assert record.status.value in ("PENDING", "ACTIVE")
    assert record.infrastructure_failures == 0


def test_a_cleanup_command_that_fails_and_stores_output_ends_like_any_other(cluster: Cluster) -> None:
    cluster.submit("job", cleanup_command="false")
    cluster.hosts.storing["job", 0] = 5
    cluster.hosts.scripts["job"] = runs_for(2, code=3)
    result(cluster, steps=60)
    assert any("the cleanup command failed: worker 0 exited with code 3" in line for line in cluster.history("job"))


def test_the_daemon_looks_again_soon_while_hosts_are_about_to_end_and_not_for_the_whole_time_they_store_output() -> (
    None
):
    cluster = running()
    assert not cluster.step().pressing
    cluster.hosts.storing["job", 2] = 300
    cluster.hosts.scripts["job"] = fails_on({2: (0, 9)})
    cluster.settle(3)
    assert cluster.step().pressing
    cluster.settle(60)
    assert not cluster.step().pressing
    assert cluster.result("job") is None
