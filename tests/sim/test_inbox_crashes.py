"""Mode `inbox`: the daemon is killed before and after every single write; nothing begins twice or by another's hand."""

from __future__ import annotations

import json

import pytest

from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import check_history, kill_at, survive

pytestmark = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def clean(cluster: Cluster) -> None:
    cluster.settle(15)
    cluster.outlive_late_requests()
    left = [key for key in cluster.listed() if key.startswith(("inbox/", "jobs/active/", "jobs/states/", "runs/"))]
    assert left == []


@pytest.mark.parametrize("point", range(1, 36))
def test_a_job_survives_the_daemons_death_at_any_write(cluster: Cluster, point: int, after: bool) -> None:
    cluster.use_inboxes()
    cluster.settle(2)
    cluster.hosts.scripts["job"] = runs_for(4, code=7)
    uid = cluster.submit("job", inbox="alice", instance_type="tpu-v4-16")
    survive(cluster, kill_at(cluster, point, after=after), lambda: cluster.result("job"))
    result = cluster.result("job") or {}
    assert (result["outcome"], result["exit_code"], result["uid"]) == ("failed", 7, uid)
    assert sorted((b.run, b.host) for b in cluster.hosts.began) == [(f"{uid}-1", 0), (f"{uid}-1", 1)]
    check_history(cluster, "job")
    clean(cluster)


@pytest.mark.parametrize("point", range(1, 30))
def test_an_update_survives_it_and_the_copy_is_what_was_accepted(cluster: Cluster, point: int, after: bool) -> None:
    cluster.use_inboxes()
    cluster.settle(2)
    uid = cluster.submit("job", inbox="alice", instance_type="tpu-v4-16", cleanup_command="echo bye")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.hosts.scripts["job"] = runs_for(3)
    store = kill_at(cluster, point, after=after)
    cluster.submit(
        "job", inbox="alice", instance_type="tpu-v4-16", cleanup_command="echo bye", version=1, command="new"
    )
    copies = set()

    def done() -> object:
        record, copy = cluster.record("job"), cluster.store.head(keys.active("job"))
        if record is not None and copy is not None:
            copies.add((record.job.command, json.loads(cluster.store.get(copy.key).data)["command"]))
        return cluster.result("job")

    survive(cluster, store, done)
    result = cluster.result("job") or {}
    assert (result["outcome"], result["uid"]) == ("succeeded", uid)
    assert copies <= {("run", "run"), ("run", "new"), ("new", "new")}, "the copy is never older than the record"
    check_history(cluster, "job")
    clean(cluster)


@pytest.mark.parametrize("point", range(1, 30))
def test_strangers_get_nowhere_by_it(cluster: Cluster, point: int, after: bool) -> None:
    cluster.use_inboxes()
    cluster.settle(2)
    uid = cluster.submit("job", inbox="alice", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    store = kill_at(cluster, point, after=after)
    cluster.submit("job", inbox="mallory", user="mallory", instance_type="tpu-v4-16", version=1)
    cluster.cancel("job", inbox="mallory")
    cluster.submit("stray", user="alice")
    cluster.store.put(keys.user_state("job"), b"CANCELLING", generation=0)

    def refused() -> object:
        told = cluster.listed("jobs/invalid/")
        return len(told) >= 3 and not cluster.listed("inbox/mallory/user_states/")

    survive(cluster, store, refused)
    cluster.settle(3)
    assert cluster.hosts.live("job") == [f"{uid}-1"]
    check_history(cluster, "job")
    cluster.cancel("job", inbox="alice")
    cluster.run_until(lambda: cluster.result("job"))
    cluster.settle(5)
    assert {b.run for b in cluster.hosts.began} == {f"{uid}-1"}
    assert cluster.listed("jobs/states/") == []
    assert cluster.listed("inbox/") == [keys.active("job", "mallory")]
