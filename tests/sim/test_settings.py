"""The operator's settings: followed by new attempts, never a reason to stop anything, and kept when they break."""

from __future__ import annotations

import pytest

from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable, StoreUnavailable
from bastion.core.model.gangs import CapacityModel
from bastion.core.model.provisioning import BUILT_IN
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for

NEAR, FAR = "us-central2-b", "europe-west4-b"


def settings(*zones: str, family: str = "v4", model: str = "on-demand", more: str = "") -> bytes:
    named = ", ".join(f'"{zone}"' for zone in zones)
    return (
        f'project = "p"\n[types.{family}]\nzones = [{named}]\nservice_account = "w@p"\n'
        f'[[tiers]]\nmodel = "{model}"\n{more}'
    ).encode()


def in_the_cloud(data: bytes | None = None) -> Cluster:
    cluster = Cluster(without_settings=None)
    if data is not None:
        cluster.write_settings(data)
    return cluster


def alarms(cluster: Cluster) -> str:
    return "\n".join(cluster.json(keys.STATUS)["alarms"])


def test_without_settings_no_slice_is_created_jobs_without_one_run_and_the_reason_says_why() -> None:
    cluster = in_the_cloud()
    cluster.hosts.scripts["plain"] = runs_for(3)
    cluster.submit("sliced", instance_type="tpu-v4-16")
    cluster.submit("plain")
    cluster.run_until(lambda: cluster.result("plain"))
    assert cluster.slices.created == []
    reason = cluster.reason("sliced")
    assert reason is not None
    assert reason["code"] == "Held"
    assert keys.DAEMON_SETTINGS in reason["message"]
    assert keys.DAEMON_SETTINGS in alarms(cluster)
    cluster.write_settings(settings(NEAR))
    cluster.run_until(lambda: cluster.hosts.live("sliced"), steps=40)
    assert alarms(cluster) == ""


def test_a_gang_is_created_as_its_tier_and_type_say_and_its_state_says_where() -> None:
    cluster = in_the_cloud(settings(NEAR, FAR, model="spot"))
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    (request,) = cluster.slices.created
    assert (request.ref.zone, request.place.zone) == (NEAR, NEAR)
    assert request.place.model is CapacityModel.SPOT
    assert request.place.service_account == "w@p"
    assert request.place.runtime_version == "tpu-ubuntu2204-base"
    record = cluster.record("job")
    assert record is not None
    assert record.attempt is not None
    assert record.attempt.place is not None
    assert record.attempt.place.zone == NEAR


@pytest.mark.parametrize("damage", [b"project = ", b"", None], ids=["half-written", "empty", "removed"])
def test_broken_or_missing_settings_change_nothing_and_raise_an_alarm(damage: bytes | None) -> None:
    cluster = in_the_cloud(settings(NEAR))
    uid = cluster.submit("before", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("before"))
    if damage is None:
        meta = cluster.store.head(keys.DAEMON_SETTINGS)
        assert meta is not None
        cluster.store.delete(meta.key, generation=meta.generation)
    else:
        cluster.write_settings(damage)
    cluster.submit("after", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("after"))
    cluster.settle(40)
    assert cluster.hosts.live("before") == [f"{uid}-1"]
    assert "using the last good ones" in alarms(cluster)
    cluster.write_settings(settings(NEAR))
    cluster.settle(40)
    assert alarms(cluster) == ""


def test_a_daemon_that_starts_with_broken_settings_and_no_good_ones_starts_nothing_and_ends_nothing() -> None:
    cluster = in_the_cloud(settings(NEAR))
    uid = cluster.submit("before", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("before"))
    cluster.write_settings(b"project = ")
    kept = cluster.store.head(keys.SETTINGS_IN_FORCE)
    assert kept is not None
    cluster.store.delete(kept.key, generation=kept.generation)
    cluster.restart_daemon()
    cluster.submit("after", instance_type="tpu-v4-16")
    cluster.settle(20)
    assert cluster.hosts.live("before") == [f"{uid}-1"]
    assert cluster.status("after") == "PENDING"
    assert "no slices are created" in alarms(cluster)
    cluster.hosts.scripts["before"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("before"))  # what ends by itself is put away all the same
    assert cluster.slices.list(NEAR) == []


def test_on_a_machine_with_emulated_slices_no_settings_are_needed_and_broken_ones_do_not_count_as_none() -> None:
    cluster = Cluster(without_settings=BUILT_IN)
    cluster.write_settings(b"project = ")
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(5)
    assert cluster.status("job") == "PENDING"
    meta = cluster.store.head(keys.DAEMON_SETTINGS)
    assert meta is not None
    cluster.store.delete(meta.key, generation=meta.generation)
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=40)
    assert alarms(cluster) == ""


def test_settings_that_cannot_be_read_are_read_again_until_they_can_be() -> None:
    cluster = in_the_cloud(settings(NEAR))
    plain = cluster.store.get

    def silent(key: str, **bounds: int):  # type: ignore[no-untyped-def]
        if key == keys.DAEMON_SETTINGS:
            raise StoreUnavailable("no answer")
        return plain(key, **bounds)

    cluster.store.get = silent  # type: ignore[method-assign]
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(10)
    assert cluster.status("job") == "PENDING"
    assert "no answer" in alarms(cluster)
    del cluster.store.get
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert alarms(cluster) == ""


def test_a_type_without_zones_is_held_and_others_go_past_it() -> None:
    cluster = in_the_cloud(settings(NEAR))
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 64\nv6e = 8").replace(b"v4 = 0.5", b"v4 = 0.5\nv6e = 0.5"))
    cluster.submit("none", instance_type="tpu-v6e-4", priority=1)
    cluster.submit("some", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("some"))
    cluster.settle(3)
    reason = cluster.reason("none")
    assert reason is not None
    assert (reason["code"], cluster.status("none")) == ("Held", "PENDING")
    assert "no zones for v6e" in reason["message"]


def test_a_zone_that_left_the_settings_is_looked_after_as_long_as_a_job_is_there() -> None:
    cluster = in_the_cloud(settings(FAR))
    uid = cluster.submit("old", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("old"))
    cluster.write_settings(settings(NEAR))
    cluster.submit("new", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("new"))
    assert [request.ref.zone for request in cluster.slices.created] == [FAR, NEAR]
    assert cluster.hosts.live("old") == [f"{uid}-1"]
    cluster.restart_daemon()
    cluster.settle(3)
    assert cluster.hosts.live("old") == [f"{uid}-1"]
    cluster.cancel("old")
    cluster.run_until(lambda: cluster.result("old"))
    assert cluster.slices.list(FAR) == []


def test_a_silent_zone_keeps_new_jobs_out_of_itself_only() -> None:
    cluster = in_the_cloud(settings(FAR, NEAR))
    plain = cluster.slices.list

    def silent(zone: str = ""):  # type: ignore[no-untyped-def]
        if zone == FAR:
            raise ProvisionerUnavailable("no answer")
        return plain(zone)

    cluster.slices.list = silent  # type: ignore[method-assign]
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert [request.ref.zone for request in cluster.slices.created] == [NEAR]
    assert FAR in alarms(cluster)
    del cluster.slices.list
    cluster.submit("next", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("next"))
    assert cluster.slices.created[-1].ref.zone == FAR


def test_the_grace_of_a_cancel_is_the_settings() -> None:
    cluster = in_the_cloud(settings(NEAR, more="[grace]\neviction_seconds = 77\n"))
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.cancel("job")
    cluster.run_until(lambda: (cluster.json(f"runs/{uid}-1/order") or {}).get("action") == "stop")
    assert cluster.json(f"runs/{uid}-1/order")["grace_seconds"] == 77


def test_settings_are_read_once_for_each_change() -> None:
    cluster = in_the_cloud(settings(NEAR))
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    cluster.settle(100)
    assert counting.read.count(keys.DAEMON_SETTINGS) == 1
    cluster.write_settings(settings(FAR))
    cluster.settle(40)
    assert counting.read.count(keys.DAEMON_SETTINGS) == 2
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert cluster.slices.created[0].ref.zone == FAR


def test_changed_settings_hold_for_the_very_next_job() -> None:
    cluster = in_the_cloud(settings(NEAR))
    cluster.settle(10)
    cluster.write_settings(settings(FAR))
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert cluster.slices.created[0].ref.zone == FAR


def test_tiers_of_the_quota_file_that_the_settings_lack_raise_an_alarm() -> None:
    cluster = in_the_cloud(settings(NEAR))
    cluster.write_quota(QUOTA.replace(b"[total_resources]\nv4 = 64", b"[[total_resources]]\nv4 = 32\n" * 2))
    cluster.settle(3)
    assert "2 tiers" in alarms(cluster)
