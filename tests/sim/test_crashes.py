"""The daemon is killed before and after every single write of a job's life; the job must not notice."""

from __future__ import annotations

import pytest

from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import check_history, kill_at, survive

# A whole life takes about forty mutations; beyond them the countdown never strikes and the run is an ordinary one.
POINTS = range(1, 46)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_slice_job_survives_the_daemons_death_at_any_write(cluster: Cluster, point: int, after: bool) -> None:
    cluster.hosts.scripts["job"] = runs_for(4, code=7)
    uid = cluster.submit("job", instance_type="tpu-v4-16", cleanup_command="echo bye")
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("failed", 7)
    began = [(b.run, b.host) for b in cluster.hosts.began]
    assert sorted(began) == [(f"{uid}-1", 0), (f"{uid}-1", 1), (f"{uid}-cleanup", 0)], "exactly one incarnation"
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []
    cluster.outlive_late_requests()
    assert [
        key for key in cluster.listed() if key.startswith(("runs/", "beats/", "jobs/claims/", "jobs/states/"))
    ] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 36))
def test_a_cancel_survives_the_daemons_death_at_any_write(cluster: Cluster, point: int, after: bool) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.cancel("job")
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 143)
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 36))
def test_the_restart_of_a_stuck_job_survives_the_daemons_death_at_any_write(
    cluster: Cluster, point: int, after: bool
) -> None:
    cluster.submit("job", instance_type="tpu-v4-16", stuck_after_seconds=60)
    cluster.run_until(lambda: len(cluster.hosts.live_tries("job")) == 1)
    cluster.hosts.signs["job"] = lambda _host, elapsed: elapsed >= 3  # the second try is faster
    cluster.hosts.later_scripts["job", 2] = runs_for(2)
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], len(result["attempts"])) == ("succeeded", 1)
    assert [each["stuck"] for each in result["attempts"][0]["tries"]] == [True]
    assert sorted((b.host, b.try_number) for b in cluster.hosts.began) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert "restarting the command (1 of 3 in a row)" in "".join(cluster.history("job"))
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []


def test_a_killed_daemons_running_job_is_adopted_and_not_started_again(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(100)
    uid = cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for _ in range(5):
        cluster.restart_daemon()
        cluster.settle(3)
        assert cluster.hosts.live("job") == [f"{uid}-1"]
    cluster.run_until(lambda: cluster.result("job"))
    assert len(cluster.hosts.began) == 4
