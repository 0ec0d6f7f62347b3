"""Whatever a crash leaves of slices is swept, by the daemon itself and by `bastion sweep`; nothing else ever is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from bastion.core.bucket import keys
from bastion.core.model.gangs import GangRef, GangRequest, GangState, GangStatus, Place
from bastion.core.model.provisioning import BUILT_IN
from bastion.daemon.observe.zones import KEPT_SECONDS
from bastion.daemon.orphans import Found, delete_orphan, find_orphans
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import Killed, kill_at

SETTINGS = """
project = "p"
[types.v4]
zones = ["{zone}"]
service_account = "worker@p.iam"
[[tiers]]
model = "on-demand"
"""


def request(run: str, *, name: str = "", zone: str = "") -> GangRequest:
    ref = GangRef(name=name or keys.gang(run), zone=zone)
    return GangRequest(
        ref=ref,
        bastion="test-bastion",
        run=run,
        token="t",
        accelerator_type="v4-8",
        place=Place(zone=zone),
        agent_arguments="{}",
    )


# None of these is named as we name ours, or says whose it is: labels can be copied.
STRANGERS = (request("", name="by-hand"), request("bbbbbbbbbb-1", name="copy-of-b"), request("x", name="b-x"))


def look(cluster: Cluster) -> Found:
    return find_orphans(cluster.store, cluster.slices, BUILT_IN)


def sweep(cluster: Cluster) -> None:
    for orphan in look(cluster).orphans:
        assert delete_orphan(cluster.store, cluster.slices, orphan) == ""


def names(cluster: Cluster) -> list[str]:
    return [status.ref.name for status in cluster.slices.list()]


def crash(cluster: Cluster, point: int, *, after: bool) -> None:
    """The daemon dies at that write or call, or lives as long as the job."""
    kill_at(cluster, point, after=after)
    with contextlib.suppress(Killed):
        for _ in range(30):
            cluster.step()
    for provisioner in (cluster.slices, cluster.bastion_host):
        del provisioner.create, provisioner.delete


def forget_jobs(cluster: Cluster) -> None:
    """Somebody empties the bucket's folder of jobs."""
    for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES):
        for meta in list(cluster.store.list(prefix)):
            cluster.store.delete(meta.key, generation=meta.generation)


@pytest.mark.parametrize("by", ["command", "daemon"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 36))
def test_nothing_of_a_forgotten_job_is_left_wherever_the_daemon_crashed(
    cluster: Cluster, point: int, after: bool, by: str
) -> None:
    for stranger in STRANGERS:
        cluster.slices.create(stranger)
        cluster.slices.put_into(stranger.ref.name, GangState.CREATING)
    cluster.hosts.scripts["job"] = runs_for(4)
    cluster.submit("job", instance_type="tpu-v4-16", num_replicas=2)
    crash(cluster, point, after=after)
    forget_jobs(cluster)
    if by == "command":
        sweep(cluster)
    else:
        cluster.restart_daemon()
        cluster.settle(8)
    assert names(cluster) == sorted(stranger.ref.name for stranger in STRANGERS)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 36))
def test_nothing_that_a_job_needs_is_swept_wherever_the_daemon_crashed(
    cluster: Cluster, point: int, after: bool
) -> None:
    cluster.hosts.scripts["job"] = runs_for(8)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    crash(cluster, point, after=after)
    sweep(cluster)
    cluster.restart_daemon()
    cluster.run_until(lambda: cluster.result("job"))
    assert [run.run for run in cluster.hosts.began] == [f"{uid}-1"] * 2, "its only attempt goes on"
    cluster.settle(8)
    assert names(cluster) == []


def test_what_only_holds_quota_is_deleted_first(cluster: Cluster) -> None:
    runs = {
        "aaaaaaaaaa-1": GangState.READY,
        "bbbbbbbbbb-1": GangState.FAILED,
        "cccccccccc-1": GangState.CREATING,
        "dddddddddd-1": GangState.LOST,
    }
    for run, state in runs.items():
        cluster.slices.create(request(run))
        cluster.slices.put_into(keys.gang(run), state)
    sweep(cluster)
    assert cluster.slices.deleted == [f"b-{letter * 10}-1" for letter in "bdac"]
    assert cluster.json(keys.order("aaaaaaaaaa-1"))["action"] == "stop", "a host that comes up late runs nothing"


def test_an_earlier_attempts_slice_is_told_with_its_job_and_an_unreadable_state_keeps_strange_slices(
    cluster: Cluster,
) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-8")
    cluster.submit("other", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.hosts.live("job") and cluster.hosts.live("other"))
    cluster.slices.create(request(f"{uid}-cleanup"))
    cluster.slices.create(request("bbbbbbbbbb-7"))
    assert [(each.status.run, each.why) for each in look(cluster).orphans] == [
        (f"{uid}-cleanup", "the cleanup of job has ended"),
        ("bbbbbbbbbb-7", "its job has ended or was deleted"),
    ]
    meta = cluster.store.head(keys.state("other"))
    assert meta is not None
    cluster.store.put(meta.key, b"{", generation=meta.generation)
    found = look(cluster)
    assert [each.status.run for each in found.orphans] == [f"{uid}-cleanup"]
    assert sum("may belong to a job whose state cannot be read" in problem for problem in found.problems) == 2


def test_a_slice_created_while_it_looks_is_not_taken_for_a_leftover(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-8")
    listed = cluster.slices.list

    def list_late(zone: str = "") -> Sequence[GangStatus]:
        cluster.slices.list = listed  # type: ignore[method-assign]
        cluster.run_until(lambda: cluster.slices.created)
        return listed(zone)

    cluster.slices.list = list_late  # type: ignore[method-assign]
    found = look(cluster)
    assert (found.orphans, found.current) == ((), 1)


def test_a_zone_that_the_settings_dropped_is_swept_by_this_daemon_and_the_next() -> None:
    cluster = Cluster(without_settings=None)
    cluster.write_settings(SETTINGS.format(zone="us-central2-a").encode())
    cluster.settle(40)
    cluster.write_settings(SETTINGS.format(zone="us-central2-b").encode())
    cluster.settle(40)
    assert cluster.json(keys.STATUS)["daemon"]["zones"] == ["us-central2-a", "us-central2-b"]
    for restart in (False, True):
        cluster.slices.create(request("bbbbbbbbbb-1", zone="us-central2-a"))
        cluster.slices.put_into("b-bbbbbbbbbb-1", GangState.CREATING)
        if restart:
            cluster.restart_daemon()
        cluster.settle(15)
        assert cluster.slices.list("us-central2-a") == [], f"{restart=}"
    cluster.clock.advance(KEPT_SECONDS)
    cluster.settle(2)
    assert cluster.json(keys.STATUS)["daemon"]["zones"] == ["us-central2-b"]


def test_a_look_changes_nothing_and_a_silent_zone_is_told(cluster: Cluster) -> None:
    cluster.slices.create(request("bbbbbbbbbb-1"))
    before = [(meta.key, meta.generation) for meta in cluster.store.list("")]
    assert len(look(cluster).orphans) == 1
    assert [(meta.key, meta.generation) for meta in cluster.store.list("")] == before
    assert (names(cluster), cluster.slices.deleted) == (["b-bbbbbbbbbb-1"], [])
    cluster.slices.down = True
    found = look(cluster)
    assert found.orphans == ()
    assert "cannot list slices" in found.problems[0]
