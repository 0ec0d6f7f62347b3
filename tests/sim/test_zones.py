"""Zones: gangs are looked for where their intent says, and one zone's silence delays nobody elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangStatus, Place
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

FAR = "europe-west4-b"


def run_in(cluster: Cluster, name: str, zone: str) -> None:
    """A running job whose gang is in that zone, as its state says."""
    cluster.submit(name, instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live(name))
    record = cluster.record(name)
    assert record is not None
    assert record.attempt is not None
    attempt = record.attempt.model_copy(update={"place": Place(zone=zone)})
    meta = cluster.store.head(keys.state(name))
    assert meta is not None
    moved = record.model_copy(update={"attempt": attempt})
    cluster.store.put(keys.state(name), moved.to_bytes(), generation=meta.generation)
    cluster.slices.move(keys.gang(f"{record.uid}-1"), zone)


def test_a_gang_is_listed_and_deleted_in_the_zone_that_its_state_names(cluster: Cluster) -> None:
    run_in(cluster, "far", FAR)
    cluster.settle(3)
    assert cluster.hosts.live("far")
    assert cluster.slices.list() == []
    cluster.cancel("far")
    cluster.run_until(lambda: cluster.result("far"))
    result = cluster.result("far")
    assert result is not None
    assert [attempt["zone"] for attempt in result["attempts"]] == [FAR]
    assert cluster.slices.list(FAR) == []


def test_zones_that_hang_keep_a_tick_for_one_deadline_and_not_for_one_each(cluster: Cluster) -> None:
    cluster.daemon = cluster.new_daemon(store_threads=3)
    for zone in ("z1", "z2", "z3"):
        run_in(cluster, f"in-{zone}", zone)
    plain, all_hang = cluster.slices.list, threading.Barrier(3)

    def hanging(zone: str = "") -> Sequence[GangStatus]:
        if zone:
            all_hang.wait(60.0)  # for the others
            raise ProvisionerUnavailable("no answer within the deadline")
        return plain(zone)

    cluster.slices.list = hanging  # type: ignore[method-assign]
    cluster.settle(2)
    assert not all_hang.broken


def test_a_zone_that_does_not_answer_stops_no_job_and_delays_those_that_live_there_only(cluster: Cluster) -> None:
    run_in(cluster, "far", FAR)
    cluster.hosts.scripts["near"] = runs_for(3)
    cluster.submit("near", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("near"))
    plain = cluster.slices.list

    def silent(zone: str = "") -> Sequence[GangStatus]:
        if zone == FAR:
            raise ProvisionerUnavailable("no answer")
        return plain(zone)

    cluster.slices.list = silent  # type: ignore[method-assign]
    cluster.cancel("far")
    cluster.run_until(lambda: cluster.result("near"), steps=20)
    assert cluster.hosts.live("far")
    assert any(FAR in alarm for alarm in cluster.json(keys.STATUS)["alarms"])
    del cluster.slices.list
    cluster.run_until(lambda: cluster.result("far"), steps=20)
