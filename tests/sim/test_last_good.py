"""What was in force stays in force when another daemon takes over while the file is broken or gone."""

from __future__ import annotations

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.memory_store import MemoryStore
from tests.sim.test_settings import NEAR, in_the_cloud, settings
from tests.support.foreign_changes import overwrite

TIGHT = QUOTA.replace(b"v4 = 64", b"v4 = 16")
DAMAGES = pytest.mark.parametrize("damage", [b"[total_resources]\nv4 = ", b"", None], ids=["half", "empty", "gone"])


def damage_to(cluster: Cluster, key: str, damage: bytes | None) -> None:
    if damage is not None:
        overwrite(cluster, key, damage)
        return
    meta = cluster.store.head(key)
    assert meta is not None
    cluster.store.delete(key, generation=meta.generation)


@DAMAGES
def test_a_successor_goes_on_with_its_predecessors_quota_and_not_with_one_of_its_own(
    cluster: Cluster, damage: bytes | None
) -> None:
    former = cluster.daemon
    cluster.settle(3)  # it knows 64 units
    cluster.restart_daemon()
    cluster.settle(3)
    cluster.write_quota(TIGHT)
    cluster.settle(3)
    damage_to(cluster, keys.PROJECT_QUOTAS, damage)
    cluster.settle(3)
    cluster.daemon.close()
    cluster.daemon = former  # takes over again, with what it knew
    cluster.submit("one", instance_type="tpu-v4-16")
    cluster.submit("two", user="bob", project="b", instance_type="tpu-v4-16")
    cluster.settle(10)
    assert sorted(map(cluster.status, ("one", "two"))) == ["ACTIVE", "PENDING"], "there is room for one"
    status = cluster.json(keys.STATUS)
    assert status["pool"]["v4"]["total"] == 16
    assert status["quota"]["in_force"]
    assert any("quota file" in alarm for alarm in status["alarms"])


@DAMAGES
def test_a_daemon_that_knows_nothing_finds_the_last_good_quota(damage: bytes | None) -> None:
    cluster = Cluster(quota=TIGHT)
    cluster.settle(3)
    generation = cluster.json(keys.STATUS)["quota"]["generation"]
    damage_to(cluster, keys.PROJECT_QUOTAS, damage)
    cluster.restart_daemon()
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert cluster.json(keys.STATUS)["quota"]["generation"] == generation
    cluster.write_quota(QUOTA)
    cluster.settle(3)
    assert cluster.json(keys.STATUS)["pool"]["v4"]["total"] == 64
    assert cluster.json(keys.STATUS)["alarms"] == []


def test_with_none_that_was_ever_good_nothing_is_admitted_and_nothing_stopped() -> None:
    cluster = Cluster(quota=b"[total_resources]\n")
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(3)
    overwrite(cluster, keys.QUOTAS_IN_FORCE, b"somebody's")
    cluster.restart_daemon()
    cluster.settle(5)
    assert cluster.status("job") == "PENDING"
    assert not cluster.json(keys.STATUS)["quota"]["in_force"]


def private(cluster: Cluster) -> MemoryStore:
    store = MemoryStore(now=cluster.clock.now)
    cluster.daemon = cluster.new_daemon(quota_store=store)
    return store


@pytest.mark.parametrize("kept", [False, True])
def test_of_a_private_bucket_nothing_is_copied_and_no_older_quota_is_used(kept: bool) -> None:
    cluster = Cluster(quota=None)
    store = private(cluster)
    first = store.put(keys.PROJECT_QUOTAS, QUOTA, generation=0)
    former = cluster.daemon
    cluster.settle(3)
    cluster.daemon = cluster.new_daemon(quota_store=store)
    cluster.settle(10)
    second = store.put(keys.PROJECT_QUOTAS, TIGHT, generation=first.generation)
    cluster.settle(3)
    assert cluster.json(keys.STATUS)["quota"]["generation"] == second.generation
    if kept:  # as `bastion quota upload` does
        store.put(keys.former_quota(second.updated, second.generation), TIGHT, generation=0)
    store.put(keys.PROJECT_QUOTAS, b"broken", generation=second.generation)
    cluster.settle(3)
    assert cluster.json(keys.STATUS)["pool"]["v4"]["total"] == 16
    assert cluster.listed("project-quotas/") == []
    cluster.daemon.close()
    cluster.daemon = former
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(8)
    status = cluster.json(keys.STATUS)
    assert status["quota"]["in_force"] == kept
    assert cluster.status("job") == ("ACTIVE" if kept else "PENDING")


def test_a_private_quota_that_is_still_in_force_is_not_forgotten() -> None:
    cluster = Cluster(quota=None)
    store = private(cluster)
    first = store.put(keys.PROJECT_QUOTAS, TIGHT, generation=0)
    former = cluster.daemon
    cluster.settle(3)
    cluster.daemon = cluster.new_daemon(quota_store=store)
    cluster.settle(10)
    store.put(keys.PROJECT_QUOTAS, b"broken", generation=first.generation)
    cluster.settle(2)
    cluster.daemon.close()
    cluster.daemon = former
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))


@pytest.mark.parametrize("damage", [b"project = ", b"", None], ids=["half", "empty", "gone"])
def test_the_settings_in_force_outlive_their_daemon(damage: bytes | None) -> None:
    cluster = in_the_cloud(settings(NEAR))
    cluster.settle(3)
    damage_to(cluster, keys.DAEMON_SETTINGS, damage)
    cluster.restart_daemon()
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    assert any("using the last good ones" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_a_dry_run_does_not_end_because_a_daemon_starts_with_broken_options(cluster: Cluster) -> None:
    options = documents.dumps({"scheduler": {"dry_run": True}})
    cluster.store.put(keys.RUNTIME_OPTIONS, options, generation=0)
    cluster.settle(3)
    damage_to(cluster, keys.RUNTIME_OPTIONS, b"{")
    cluster.restart_daemon()
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(5)
    assert cluster.status("job") == "none"
    damage_to(cluster, keys.RUNTIME_OPTIONS, None)  # none means the defaults, also for those who come later
    cluster.settle(3)
    assert cluster.status("job") == "ACTIVE"
    cluster.store.put(keys.RUNTIME_OPTIONS, b"{", generation=0)
    cluster.restart_daemon()
    cluster.submit("next", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("next"))


def test_a_forged_copy_is_put_right_before_a_successor_needs_it() -> None:
    cluster = Cluster(quota=TIGHT)
    cluster.settle(3)
    good = cluster.store.get(keys.QUOTAS_IN_FORCE).data
    overwrite(cluster, keys.QUOTAS_IN_FORCE, good.replace(b"v4 = 16", b"v4 = 9999"))
    cluster.run_until(lambda: cluster.store.get(keys.QUOTAS_IN_FORCE).data == good, steps=380)
