"""Somebody sets the wall clock while the budgets of `limits` run: they last as long as they should."""

from __future__ import annotations

import pytest

from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.sim.test_clock_steps import HOUR, Trouble, check, lasts

GROUP = {"group": "g"}
TROUBLES = [Trouble((HOUR,)), Trouble((-HOUR,), restart="same"), Trouble((-HOUR, HOUR), cloud=True)]
troubled = pytest.mark.parametrize("trouble", TROUBLES, ids=str)


@pytest.mark.parametrize("instance_type", ["tpu-v4-16", ""])
@troubled
def test_a_job_holds_its_slices_for_its_maximum(trouble: Trouble, instance_type: str) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.submit("job", instance_type=instance_type, max_run_seconds=200)
    cluster.hosts.scripts["job"] = runs_for(1e9)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    check(trouble, 200.0, lasts(cluster, trouble, 200.0, lambda: not cluster.hosts.live("job")), late=3.0)
    cluster.run_until(lambda: cluster.result("job"))
    ended = cluster.result("job")
    assert ended is not None
    assert (ended["exit_code"], len(ended["attempts"])) == (124, 1)


@troubled
def test_a_dependency_is_awaited_for_as_long_as_was_asked(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.hosts.scripts["first"] = runs_for(1e9)
    uid = cluster.submit("first", instance_type="tpu-v4-8")
    after = [{"job": "first", "uid": uid, "on": "succeeded"}]
    cluster.submit("second", instance_type="tpu-v4-8", after=after, after_at_most_seconds=1800)
    cluster.run_until(lambda: cluster.hosts.live("first"))
    check(trouble, 1800.0, lasts(cluster, trouble, 1800.0, lambda: cluster.result("second"), tick=5.0), tick=5.0)


@troubled
def test_a_cleanup_waits_for_its_group_and_each_try_runs_for_as_long_as_was_asked(trouble: Trouble) -> None:
    cluster = Cluster(own_server_time=trouble.cloud)
    cluster.hosts.scripts["finisher"] = runs_for(2)
    options = {"cleanup_after_group_seconds": 1800, "cleanup_max_seconds": 900, "cleanup_tries": 2, **GROUP}
    uid = cluster.submit("finisher", cleanup_command="finish", **options)
    cluster.submit("member", instance_type="tpu-v4-8", **GROUP)
    cluster.run_until(lambda: (record := cluster.record("finisher")) and record.awaits_group)
    cluster.hosts.scripts["finisher"] = runs_for(1e9)
    runs = {began.run for began in cluster.hosts.began}

    def began() -> set[str]:
        return {each.run for each in cluster.hosts.began} - runs

    quiet = Trouble((), cloud=trouble.cloud)
    lasted = lasts(cluster, trouble, 1800.0, lambda: f"{uid}-cleanup" in began(), tick=5.0)
    check(trouble, 1800.0, lasted, late=10.0, tick=5.0)
    lasted = lasts(cluster, trouble, 900.0, lambda: f"{uid}-cleanup2" in began(), tick=5.0)
    check(trouble, 900.0, lasted, late=80.0, tick=5.0)
    lasted = lasts(cluster, quiet, 900.0, lambda: cluster.result("finisher"), tick=5.0)
    check(quiet, 900.0, lasted, late=80.0, tick=5.0)
