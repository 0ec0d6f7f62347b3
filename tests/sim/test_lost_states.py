"""A state that somebody removes or puts back takes no room from anybody for good, and leaves no gang behind."""

from __future__ import annotations

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.job_record import JobRecord, read
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import overwrite

STATE = keys.state("job-a")


def units(cluster: Cluster) -> int:
    """Units of all gangs."""
    requests = cluster.slices.existing_requests()
    return sum(int(r.accelerator_type.rpartition("-")[2]) * r.ref.num_slices for r in requests)


def with_a_running_job() -> Cluster:
    """A cluster of 64 units whose job-a holds 48 of them."""
    cluster = Cluster()
    cluster.hosts.scripts["job-a"] = runs_for(60_000)
    cluster.hosts.scripts["job-b"] = runs_for(30)
    cluster.submit("job-a", instance_type="tpu-v4-16", num_replicas=3)
    cluster.settle(12)
    assert units(cluster) == 48
    return cluster


def remove_state(cluster: Cluster) -> None:
    meta = cluster.store.head(STATE)
    assert meta is not None
    cluster.store.delete(STATE, generation=meta.generation)


def record(cluster: Cluster) -> JobRecord:
    found = read(cluster.store.get(STATE).data, name="job-a")
    assert isinstance(found, JobRecord)
    return found


@pytest.mark.parametrize("restarted", [False, True], ids=["same-daemon", "restarted-daemon"])
def test_a_job_whose_state_was_removed_runs_again_as_the_next_attempt_once_its_gang_is_gone(restarted: bool) -> None:
    cluster = with_a_running_job()
    before = {request.ref.name for request in cluster.slices.existing_requests()}
    remove_state(cluster)
    if restarted:
        cluster.restart_daemon()
    cluster.submit("job-b", user="bob", project="b", instance_type="tpu-v4-32")
    for _ in range(40):
        cluster.step()
        assert units(cluster) <= 64
    assert record(cluster).next_attempt == 3
    assert before.isdisjoint(request.ref.name for request in cluster.slices.existing_requests())
    assert any("the job's state was lost after attempt 1" in line for line in cluster.history("job-a"))
    assert cluster.status("job-a") == "ACTIVE"
    assert cluster.hosts.live("job-a")


def test_the_units_of_its_gang_are_charged_while_that_is_removed() -> None:
    cluster = with_a_running_job()
    cluster.submit("job-b", user="bob", project="b", instance_type="tpu-v4-32")
    remove_state(cluster)
    cluster.slices.delete_seconds = 8.0
    for _ in range(20):
        cluster.step()
        assert units(cluster) <= 64


def test_a_claim_of_an_attempt_that_nobody_admitted_lets_no_cleanup_run(cluster: Cluster) -> None:
    uid = cluster.submit("job-a", cleanup_command="touch owned", user="mallory", project="nobody")
    overwrite(cluster, keys.claim(f"{uid}-7", "any"), b"{}")
    cluster.settle(4)
    assert record(cluster).next_attempt == 8
    assert not record(cluster).had_attempt
    cluster.cancel("job-a", uid)
    cluster.run_until(lambda: cluster.result("job-a"))
    assert any("skipping its cleanup command: the job never started" in line for line in cluster.history("job-a"))


def test_an_older_state_that_was_put_back_does_not_keep_a_gang_alive_for_good(cluster: Cluster) -> None:
    cluster.hosts.scripts["job-a"] = runs_for(60_000)
    cluster.submit("job-a", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.status("job-a") == "PENDING")
    queued = cluster.store.get(STATE).data
    cluster.settle(12)
    assert units(cluster) == 16
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 8"))  # the job cannot start again
    cluster.settle(2)
    overwrite(cluster, STATE, queued)
    cluster.settle(5)
    assert units(cluster) == 16, "a daemon whose state was not seen yet may have created it"
    ended = cluster.clock.monotonic() + limits.LATER_GANG_SECONDS + 30
    while cluster.clock.monotonic() < ended:
        cluster.step()
    assert units(cluster) == 0
    assert cluster.status("job-a") == "PENDING"
