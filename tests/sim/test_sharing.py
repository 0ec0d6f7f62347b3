"""Two projects and one pool: lending, reclaiming, and what the borrower is told."""

from __future__ import annotations

import pytest

from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for


def full_pool() -> Cluster:
    """Alice's project holds the whole pool of 64: 32 of its own, 32 borrowed."""
    cluster = Cluster()
    for name in ("own", "borrower"):
        cluster.submit(name, instance_type="tpu-v4-32")
        cluster.run_until(lambda name=name: cluster.hosts.live(name))
    return cluster


def test_an_owners_return_evicts_the_borrower_which_runs_again_later() -> None:
    cluster = full_pool()
    cluster.hosts.scripts["owner"] = runs_for(10)
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("owner"), steps=30)
    evicted = [name for name in ("own", "borrower") if cluster.status(name) == "PENDING"]
    assert len(evicted) == 1, "one borrower, and no more"
    (borrower,) = evicted
    reason = cluster.reason(borrower)
    record = cluster.record(borrower)
    assert reason is not None
    assert record is not None
    assert from_rfc3339(reason["since"]) == pytest.approx(record.attempts[-1].ended_at), "not since it was first queued"
    assert reason["code"] in ("WaitingForPool", "WaitingForProjectShare")
    assert any("evicted" in line and "owner" in line for line in cluster.history(borrower))
    cluster.run_until(lambda: cluster.result("owner"))
    # The owner's share is held for its next job for five minutes, and lent again then.
    cluster.run_until(lambda: cluster.hosts.live(borrower), steps=400)
    record = cluster.record(borrower)
    assert record is not None
    assert [(attempt.cause.value, attempt.number) for attempt in record.attempts] == [("evicted", 1)]


def test_the_room_goes_to_the_owner_for_whom_it_was_made_though_others_wait_longer() -> None:
    cluster = full_pool()
    cluster.submit("greedy", instance_type="tpu-v4-32")  # waits before the owner comes
    cluster.settle(3)
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("owner") or cluster.hosts.live("greedy"), steps=40)
    assert cluster.hosts.live("owner")
    assert not cluster.hosts.live("greedy")


def test_a_restarted_daemon_does_not_evict_a_second_borrower_for_the_same_owner() -> None:
    cluster = full_pool()
    cluster.slices.delete_seconds = 15.0
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32")
    for _ in range(4):
        cluster.settle(2)
        cluster.restart_daemon()
    cluster.run_until(lambda: cluster.hosts.live("owner"), steps=60)
    causes = [a.cause.value for name in ("own", "borrower") if (r := cluster.record(name)) for a in r.attempts]
    assert causes == ["evicted"]


def test_a_project_at_its_entitlement_is_never_evicted(cluster: Cluster) -> None:
    cluster.submit("a-own", instance_type="tpu-v4-32")
    cluster.submit("b-own", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("a-own") and cluster.hosts.live("b-own"))
    cluster.submit("b-more", user="bob", project="b", instance_type="tpu-v4-32", priority=1)
    cluster.settle(20)
    assert cluster.hosts.live("a-own")
    assert cluster.hosts.live("b-own")
    assert cluster.reason("b-more") is not None


def test_a_cut_of_the_pool_stops_nothing_and_starts_nothing_until_usage_fits() -> None:
    cluster = full_pool()
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 32"))
    cluster.submit("later", user="alice", instance_type="tpu-v4-8")
    cluster.settle(20)
    assert cluster.hosts.live("own")
    assert cluster.hosts.live("borrower")
    assert not cluster.hosts.live("later")


def test_a_broken_quota_file_changes_nothing_and_is_told() -> None:
    cluster = full_pool()
    cluster.write_quota(b"[total_resources\nv4 = ")
    cluster.settle(5)
    assert cluster.hosts.live("own")
    assert cluster.hosts.live("borrower")
    status = cluster.json(keys.STATUS)
    assert any("line 1" in alarm for alarm in status["alarms"])
    assert status["quota"]["in_force"]


def test_without_any_quota_file_nothing_starts_and_the_reason_says_so() -> None:
    cluster = Cluster(quota=None)
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.settle(5)
    reason = cluster.reason("job")
    assert reason is not None
    assert reason["code"] == "QuotaFileInvalid"
    cluster.write_quota(QUOTA)
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=10)


def test_a_stranger_is_told_which_projects_there_are(cluster: Cluster) -> None:
    cluster.submit("job", user="mallory", project="a", instance_type="tpu-v4-8")
    cluster.settle(3)
    reason = cluster.reason("job")
    assert reason is not None
    assert reason["code"] == "NotMember"


def test_the_reason_keeps_the_instant_since_when_it_holds() -> None:
    cluster = full_pool()
    cluster.submit("waiting", instance_type="tpu-v4-32")
    cluster.settle(3)
    first = cluster.reason("waiting")
    cluster.settle(30)
    assert cluster.reason("waiting") == first


def test_since_when_a_reason_holds_survives_the_daemon_and_moves_with_the_reason() -> None:
    cluster = full_pool()
    cluster.submit("waiting", instance_type="tpu-v4-32")
    cluster.settle(3)
    first = cluster.reason("waiting")
    cluster.settle(10)
    cluster.restart_daemon()
    cluster.settle(3)
    assert cluster.reason("waiting") == first
    before = cluster.clock.now()
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 16"))
    cluster.settle(2)
    second = cluster.reason("waiting")
    assert first is not None
    assert second is not None
    assert second["code"] == "ExceedsPool" != first["code"]
    assert from_rfc3339(second["since"]) >= before
