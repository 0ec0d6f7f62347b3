"""What piles up, or comes late, while jobs and daemons wait for long."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.reconcile.sweep import PAST_RUNS_KEPT_SECONDS
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import runs_for

SETTINGS = (
    b'project = "p"\n[types.v4]\nzones = ["us-central2-b"]\nservice_account = "w@p"\n[[tiers]]\nmodel = "on-demand"\n'
)


def test_a_job_that_waits_for_capacity_for_long_leaves_no_objects_of_its_past_attempts(cluster: Cluster) -> None:
    cluster.slices.stockouts = 10_000
    cluster.submit("job", instance_type="tpu-v4-16")
    for _ in range(720):
        cluster.step(20.0)  # four hours
    record = cluster.record("job")
    assert record is not None
    assert record.next_attempt > 40
    held = {key.removeprefix(keys.RUNS).partition("/")[0] for key in cluster.listed(keys.RUNS)}
    claims = cluster.listed(keys.JOBS_CLAIMS)
    most = PAST_RUNS_KEPT_SECONDS / (limits.CAPACITY_BACKOFF_MAX_SECONDS * 0.75) + 3
    assert 1 <= len(held) <= most
    assert 1 <= len(claims) <= most
    cluster.slices.stockouts = 0
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.run_until(lambda: cluster.result("job"), steps=600)
    assert len({b.run for b in cluster.hosts.began}) == 1


def test_hosts_that_are_told_late_to_stop_have_their_whole_grace(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(2)
    cluster.hosts.stuck |= {("job", 0), ("job", 1)}  # they need all of their grace
    faulty.fail_next("put", key=keys.order(f"{uid}-1"), times=120)
    cluster.cancel("job", uid)
    for _ in range(100):
        cluster.step()
    assert cluster.slices.deleted == []
    cluster.run_until(lambda: cluster.json(keys.order(f"{uid}-1"))["action"] == "stop")
    told_at = cluster.clock.now()
    cluster.run_until(lambda: cluster.slices.deleted)
    assert cluster.clock.now() - told_at >= limits.EVICTION_GRACE_SECONDS
    cluster.run_until(lambda: cluster.result("job"))


def test_a_job_that_ran_on_the_bastion_and_is_updated_to_slices_gets_them() -> None:
    cluster = Cluster(without_settings=None)
    cluster.write_settings(SETTINGS)
    cluster.hosts.scripts["job"] = lambda _host, _elapsed: None
    listed = cluster.slices.list
    asked: list[str] = []

    def only_named(zone: str = "") -> object:
        asked.append(zone)
        if not zone:
            raise ProvisionerUnavailable('there is no place ""')
        return listed(zone)

    cluster.slices.list = only_named  # type: ignore[method-assign, assignment]
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.submit("job", instance_type="tpu-v4-16", version=1)
    cluster.run_until(lambda: cluster.slices.created, steps=100)
    assert set(asked) == {"us-central2-b"}


def test_hosts_that_are_told_late_of_the_next_try_are_not_lost_by_it(cluster: Cluster) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    cluster.hosts.scripts["job"] = lambda host, elapsed: 3 if host == 0 and elapsed >= 5 else None
    cluster.hosts.later_scripts["job", 2] = runs_for(2)
    uid = cluster.submit("job", instance_type="tpu-v4-16", max_tries=2)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    faulty.fail_next("put", key=keys.order(f"{uid}-1"), times=200)
    cluster.run_until(lambda: cluster.result("job"), steps=400)
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], len(result["attempts"])) == ("succeeded", 1)
