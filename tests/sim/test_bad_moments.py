"""Changes, silences and second daemons at bad moments: the daemon's tick goes on, safely."""

from __future__ import annotations

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import overwrite

# -- the gate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [b"", b"{", b'{"run": "x"}', b"null"])
def test_an_unreadable_claim_does_not_hold_its_slice_for_ever(cluster: Cluster, claim: bytes) -> None:
    cluster.slices.ready_seconds = 3.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    cluster.store.put(cluster.claim_of(f"{uid}-1"), claim, generation=0)
    cluster.settle(5)
    if cluster.status("job") == "ACTIVE":
        cluster.cancel("job", uid)
    cluster.run_until(lambda: not [s for s in cluster.slices.list() if s.run == f"{uid}-1"], steps=120)
    assert not [b for b in cluster.hosts.began if b.run == f"{uid}-1"]


def test_an_order_overwritten_with_garbage_is_written_again(cluster: Cluster) -> None:
    cluster.slices.ready_seconds = 5.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    cluster.restart_daemon()
    overwrite(cluster, keys.order(f"{uid}-1"), b"garbage")
    cluster.restart_daemon()
    cluster.settle(8)
    assert cluster.json(keys.order(f"{uid}-1"))["action"] == "run"
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_a_runs_order_goes_before_its_claim_so_that_a_late_host_finds_nothing_to_run(cluster: Cluster) -> None:
    deleted: list[str] = []
    delete = cluster.store.delete

    def noting(key: str, *, generation: int) -> None:
        deleted.append(key)
        delete(key, generation=generation)

    cluster.store.delete = noting  # type: ignore[method-assign]
    cluster.hosts.scripts["job"] = runs_for(1)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.result("job"))
    cluster.outlive_late_requests()
    assert deleted.index(keys.order(f"{uid}-1")) < deleted.index(cluster.claim_of(f"{uid}-1"))


def test_a_gang_whose_hosts_are_up_and_never_pass_the_gate_is_given_up(cluster: Cluster) -> None:
    cluster.hosts.stuck = {("job", 0), ("job", 1)}  # they report that they wait, and beat
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.created)
    for _ in range(int(limits.PROVISION_TIMEOUT_SECONDS / 30) + 5):
        cluster.step(30.0)
    assert cluster.slices.deleted
    assert any("none passed the gate within 1800 s" in line for line in cluster.history("job"))


# -- updates ----------------------------------------------------------------------------------------------------


def test_a_waiting_job_updated_to_a_larger_size_is_not_started_by_the_decision_on_the_smaller_one() -> None:
    # Whenever it comes: the update and the decision to start must not meet.
    for delay in range(8):
        cluster = Cluster()
        cluster.submit("holder", user="bob", project="b", instance_type="tpu-v4-32")
        cluster.submit("job", instance_type="tpu-v4-32")
        for _ in range(delay):
            cluster.step(0.1)
        if cluster.status("job") in ("none", "PENDING"):
            cluster.submit("job", instance_type="tpu-v4-64", version=1)
        for _ in range(4):
            cluster.step()
            assert cluster.in_use({request.run for request in cluster.slices.existing_requests()}) <= 64


# -- hosts ------------------------------------------------------------------------------------------------------


def test_a_host_that_reported_once_and_never_beat_is_lost_like_any_other(cluster: Cluster) -> None:
    cluster.hosts.mute.add(("job", 1))
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=250)
    assert any("worker 1 sent no heartbeat for" in line for line in cluster.history("job"))


def test_a_job_on_another_bastion_host_that_claimed_and_never_beat_starts_anew_in_time(cluster: Cluster) -> None:
    cluster.hosts.mute.add(("job", 0))
    uid = cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.bastion_host = FakeProvisioner(cluster.clock)  # another VM: nothing of the old one is listed
    cluster.host_identity = "host-2"
    cluster.restart_daemon()
    before = cluster.clock.monotonic()
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-2"], steps=2500)
    assert cluster.clock.monotonic() - before >= limits.BASTION_HOST_HEARTBEAT_LOST_SECONDS


def test_a_flood_of_cleanup_commands_does_not_run_all_at_once() -> None:
    cluster = Cluster(quota=QUOTA.replace(b"v4 = 64", b"v4 = 1600"))
    for k in range(100):
        cluster.submit(f"job-{k}", instance_type="tpu-v4-8", cleanup_command="echo bye")
    cluster.run_until(lambda: len(cluster.hosts.began) == 100)
    for k in range(100):
        cluster.hosts.scripts[f"job-{k}"] = runs_for(1)
        cluster.cancel(f"job-{k}")
    most = 0
    for _ in range(400):
        cluster.step()
        most = max(most, len(cluster.bastion_host.list()))
        if not cluster.listed("jobs/states/"):
            break
    assert cluster.listed("jobs/states/") == []
    assert sum(began.run.endswith("-cleanup") for began in cluster.hosts.began) == 100
    assert 1 <= most <= limits.CLEANUP_COMMANDS_MAX


# -- two daemons ------------------------------------------------------------------------------------------------


def test_a_daemon_whose_lease_runs_out_within_a_tick_stops_acting_in_it(cluster: Cluster) -> None:
    slow = CountingStore(cluster.store)
    put = slow.put

    def slowly(key: str, data: bytes, *, generation: int):  # type: ignore[no-untyped-def]
        if key != keys.LEASE:
            cluster.clock.advance(0.5)
        return put(key, data, generation=generation)

    slow.put = slowly  # type: ignore[method-assign]
    cluster.daemon = cluster.new_daemon(slow)  # type: ignore[arg-type]
    for k in range(100):
        cluster.submit(f"job-{k}", instance_type="tpu-v4-128")
    cluster.daemon.tick()
    written = [key for key in slow.written if key.startswith(keys.JOBS_STATES)]
    assert len(written) <= 50, "two thirds of a TTL of 5 s are over after 7 writes, and 32 may be under way"
    assert keys.STATUS not in slow.written
    for _ in range(20):
        cluster.daemon.tick()
    assert len(cluster.listed(keys.JOBS_STATES)) == 100


def test_a_report_missing_in_one_listing_ends_no_job_that_has_run_for_long(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for _ in range(200):
        cluster.step(10)
    plain = cluster.store.list

    def lagging(prefix: str, *, start_after: str = "", end_before: str = ""):  # type: ignore[no-untyped-def]
        return iter(
            [
                m
                for m in plain(prefix, start_after=start_after, end_before=end_before)
                if not m.key.startswith(f"runs/{uid}-1/reports")
            ]
        )

    cluster.store.list = lagging  # type: ignore[method-assign]
    cluster.step()
    cluster.store.list = plain  # type: ignore[method-assign]
    cluster.settle(5)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_a_half_written_wish_is_not_dropped_until_it_has_been_still(cluster: Cluster) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.store.put(keys.user_state("job"), b'{"status": "CANC', generation=0)
    cluster.step(0.3)
    cluster.step(0.3)
    overwrite(cluster, keys.user_state("job"), b'{"status": "CANCELLING"}')
    cluster.run_until(lambda: cluster.result("job"), steps=10)
    assert (cluster.result("job") or {})["outcome"] == "cancelled"


def test_a_decision_that_takes_longer_than_the_lease_is_carried_out_if_nobody_else_acted(cluster: Cluster) -> None:
    slow = CountingStore(cluster.store)
    listing = slow.list

    def slowly(prefix: str, *, start_after: str = "", end_before: str = ""):  # type: ignore[no-untyped-def]
        if prefix == keys.BEATS:
            cluster.clock.advance(4.0)  # of a TTL of 5 s, two thirds are for acting
        return listing(prefix, start_after=start_after, end_before=end_before)

    slow.list = slowly  # type: ignore[method-assign]
    cluster.daemon = cluster.new_daemon(slow)  # type: ignore[arg-type]
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=40)
