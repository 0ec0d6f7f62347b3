"""The bucket or the cloud refuses, lags or gives no answer: no running job ends for it, and nothing is done twice."""

from __future__ import annotations

from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, ProvisionerUnavailable
from bastion.core.model.gangs import GangRef
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import check_a_good_job_runs


def test_an_outage_of_the_bucket_longer_than_the_beat_limit_ends_no_running_job(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(3)
    for _ in range(30):  # neither the daemon nor the hosts reach the bucket
        faulty.fail_next("list", times=30)
        faulty.fail_next("put", times=30)
        faulty.fail_next("get", times=30)
        cluster.daemon.tick()
        cluster.clock.advance(10)
    faulty._ordered.clear()
    for _ in range(5):
        cluster.daemon.tick()  # the daemon is back before the hosts are
        cluster.clock.advance(2)
    cluster.settle(60)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_an_outage_of_writes_alone_ends_no_running_job(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(3)
    for _ in range(200):
        faulty.fail_next("put", times=5)
        cluster.daemon.tick()
        cluster.clock.advance(1)
        faulty._ordered.clear()
    cluster.settle(60)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_a_quota_bucket_that_refuses_us_leaves_the_last_good_file_in_force(cluster: Cluster) -> None:
    quota_store = CountingStore(cluster.store)  # another way to the same bucket, as to another bucket
    cluster.daemon = cluster.new_daemon(quota_store=quota_store)
    cluster.hosts.scripts["job"] = runs_for(20)
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    plain = quota_store.list

    def denied(prefix: str, *, start_after: str = "", end_before: str = ""):  # type: ignore[no-untyped-def]
        if prefix == keys.PROJECT_QUOTAS:
            raise AccessDenied("storage.objects.list is missing")
        return plain(prefix, start_after=start_after, end_before=end_before)

    quota_store.list = denied  # type: ignore[method-assign]
    cluster.run_until(lambda: cluster.result("job"), steps=40)
    assert any("storage.objects.list" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_a_history_that_cannot_be_written_delays_its_own_job_only(cluster: Cluster) -> None:
    append = cluster.store.append

    def denied(key: str, data: bytes, *, generation: int):  # type: ignore[no-untyped-def]
        if key == keys.job_history("a-bad"):
            raise AccessDenied("the object is under a hold")
        return append(key, data, generation=generation)

    cluster.store.append = denied  # type: ignore[method-assign]
    cluster.hosts.scripts["a-bad"] = runs_for(1)
    cluster.submit("a-bad")
    check_a_good_job_runs(cluster)
    assert cluster.result("a-bad") is None
    cluster.store.append = append  # type: ignore[method-assign]
    cluster.run_until(lambda: cluster.result("a-bad"), steps=10)
    numbers = [line.split()[1].partition("#")[2] for line in cluster.history("a-bad")]
    assert numbers == [str(k + 1) for k in range(len(numbers))]


def test_a_renewal_of_the_lease_whose_reply_was_lost_costs_no_ttl(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    cluster.settle(2)
    faulty.fail_next("put", key=keys.LEASE, fault=Fault.AFTER)
    reports = [cluster.step() for _ in range(6)]
    assert all(report.acted for report in reports)
    assert cluster.json(keys.LEASE)["epoch"] == 1


def test_a_state_missing_in_one_listing_frees_none_of_what_its_job_holds(cluster: Cluster) -> None:
    cluster.submit("holder", instance_type="tpu-v4-32", num_replicas=2)
    cluster.run_until(lambda: cluster.hosts.live("holder"))
    plain = cluster.store.list

    def lagging(prefix: str, *, start_after: str = "", end_before: str = ""):  # type: ignore[no-untyped-def]
        return iter(
            [m for m in plain(prefix, start_after=start_after, end_before=end_before) if m.key != keys.state("holder")]
        )

    cluster.submit("more", instance_type="tpu-v4-32")
    cluster.store.list = lagging  # type: ignore[method-assign]
    for _ in range(3):
        cluster.step()
        assert [status.ref.num_slices for status in cluster.slices.list()] == [2]
    cluster.store.list = plain  # type: ignore[method-assign]
    cluster.settle(10)
    assert [status.ref.num_slices for status in cluster.slices.list()] == [2]


def test_no_new_attempt_starts_while_nodes_cannot_be_listed(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")

    def no_answer(_zone: str) -> list:  # type: ignore[type-arg]
        raise ProvisionerUnavailable("no answer")

    cluster.slices.list = no_answer  # type: ignore[method-assign]
    cluster.settle(4)
    assert cluster.slices.created == []
    del cluster.slices.list
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=10)


def test_a_gang_that_cannot_be_deleted_now_is_asked_for_again_and_keeps_no_other_job(cluster: Cluster) -> None:
    for name in ("stuck", "other"):
        cluster.submit(name, instance_type="tpu-v4-16", num_replicas=2)
    cluster.run_until(lambda: cluster.hosts.live("stuck") and cluster.hosts.live("other"))
    (stuck,) = (request.ref for request in cluster.slices.created if request.run in cluster.hosts.live("stuck"))
    delete = cluster.slices.delete

    def refuses(ref: GangRef) -> None:
        if ref == stuck:
            raise ProvisionerUnavailable("cannot delete this one now")
        delete(ref)

    cluster.slices.delete = refuses  # type: ignore[method-assign]
    cluster.cancel("stuck")
    cluster.cancel("other")
    cluster.run_until(lambda: cluster.result("other"), steps=10)
    assert [status.ref for status in cluster.slices.list()] == [stuck]
    del cluster.slices.delete
    cluster.run_until(lambda: cluster.result("stuck"), steps=10)
