"""Objects changed by foreign hands at bad moments, outages, and two daemons: the daemon's tick goes on, safely."""

from __future__ import annotations

import json

import pytest

from bastion.core import keys, limits
from bastion.core.errors import AccessDenied, ProvisionerUnavailable
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.scripted_hosts import runs_for


def overwrite(cluster: Cluster, key: str, data: bytes) -> None:
    meta = cluster.store.head(key)
    cluster.store.put(key, data, generation=meta.generation if meta else 0)


def remove(cluster: Cluster, key: str) -> None:
    meta = cluster.store.head(key)
    assert meta is not None
    cluster.store.delete(key, generation=meta.generation)


def check_a_good_job_runs(cluster: Cluster) -> None:
    cluster.hosts.scripts["good"] = runs_for(1)
    cluster.submit("good")
    cluster.run_until(lambda: "completed: succeeded" in "".join(cluster.history("good")), steps=25)
    assert (cluster.result("good") or {})["outcome"] == "succeeded"


# -- hostile objects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("beats/aaaaaaaaaa-1.²", b""),
        ("jobs/invalid/x", b"[" * 200_000),
        ("jobs/invalid/x", b'{"name": "x", "generation": 1e999}'),
        ("jobs/invalid/x", b'{"name": "line\\nfeed", "generation": 3}'),
        ("jobs/invalid/x", b'{"name": "' + b"n" * 2000 + b'", "generation": 3}'),
        ("jobs/complete/good", b"[" * 200_000),
        ("jobs/complete/good", b'{"result": {"uid": "line\\nfeed"}}'),
        ("jobs/complete/good", b'{"result": {"uid": "' + b"u" * 2000 + b'"}}'),
        ("jobs/complete/good", b'{"result": {"uid": "\\udc80"}}'),
        ("runtime_options", b"[" * 200_000),
        ("jobs/user_states/good", b'{"status": "CANCELLED", "x": 1e999}'),
        ("lease", b"[" * 200_000),
    ],
)
def test_an_object_of_a_strange_form_stops_nobody(key: str, data: bytes) -> None:
    cluster = Cluster()
    cluster.store.put(key, data, generation=0)
    cluster.settle(8)
    check_a_good_job_runs(cluster)


@pytest.mark.parametrize(
    "extra", [b"1e999", b"-1e999", b"[" * 31 + b"]" * 31, b"9" * 4000, b"1.5e-400", b'"\\ud83d\\ude00"']
)
def test_a_spec_with_strange_unknown_fields_is_refused_or_survives_a_restart(extra: bytes) -> None:
    cluster = Cluster()
    cluster.hosts.scripts["strange"] = runs_for(8)
    elsewhere = Cluster()
    elsewhere.submit("strange")
    data = elsewhere.store.get(keys.active("strange")).data
    cluster.put_spec("strange", data[:-1] + b',"zzz":' + extra + b"}")
    cluster.settle(3)
    cluster.restart_daemon()
    check_a_good_job_runs(cluster)
    cluster.run_until(lambda: cluster.result("strange") or cluster.json(keys.invalid("strange")), steps=30)
    assert cluster.json(keys.STATUS)["alarms"] == []


def record_document(cluster: Cluster, name: str) -> dict:  # type: ignore[type-arg]
    return dict(json.loads(cluster.store.get(keys.state(name)).data))


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"version": 1}},
        {"status": "ACTIVE", "attempt": None},
        {"status": "CLEANING", "outcome": None},
        {"status": "COMPLETED", "outcome": None, "attempt": None},
        {"queued_at": 1e300},
        {"queued_at": "9999-99-99"},
        {"uid": "../../../etc"},
        {"uid": ""},
        {"next_attempt": -1},
        {"generation": -5},
    ],
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_state_of_strange_content_freezes_its_own_job_at_most(change: dict[str, object], restarted: bool) -> None:
    cluster = Cluster()
    uid = cluster.submit("bad")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    document = {k: v for k, v in {**record_document(cluster, "bad"), **change}.items() if v is not None}
    overwrite(cluster, keys.state("bad"), json.dumps(document).encode())
    if restarted:
        cluster.restart_daemon()
    check_a_good_job_runs(cluster)
    cluster.settle(8)
    assert cluster.hosts.live("bad") == [f"{uid}-1"]
    assert any("bad" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_a_negative_charge_in_a_state_gives_nobody_room() -> None:
    cluster = Cluster()
    cluster.submit("bad", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    document = record_document(cluster, "bad")
    document["attempt"]["charged"] = {"v4": -1000}
    overwrite(cluster, keys.state("bad"), json.dumps(document).encode())
    for k in range(4):
        cluster.submit(f"more-{k}", instance_type="tpu-v4-32")
    cluster.settle(8)
    assert len(cluster.slices.list()) <= 2


def test_the_nodes_of_a_job_whose_state_cannot_be_read_are_nobodys_to_sweep() -> None:
    cluster = Cluster()
    uid = cluster.submit("bad", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    good = cluster.store.get(keys.state("bad")).data
    overwrite(cluster, keys.state("bad"), good.replace(b'"format":1', b'"format":2'))
    cluster.restart_daemon()
    cluster.settle(15)
    assert cluster.hosts.live("bad") == [f"{uid}-1"]
    overwrite(cluster, keys.state("bad"), good)
    cluster.hosts.scripts["bad"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("bad"), steps=20)


def test_an_object_too_large_to_be_ours_is_not_downloaded() -> None:
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    huge = b"x" * (limits.DOCUMENT_MAX_BYTES + 1)
    named = ("jobs/user_states/x", "jobs/states/x", "jobs/invalid/x", "runtime_options")
    for key in named:
        cluster.store.put(key, huge, generation=0)
    cluster.settle(4)
    assert not set(named) & set(counting.read)
    check_a_good_job_runs(cluster)


def test_a_node_with_our_label_and_no_run_of_ours_is_never_deleted() -> None:
    from bastion.core.slices import SliceRequest

    cluster = Cluster()
    cluster.slices.create(
        SliceRequest(
            node_id="by-hand",
            bastion="test-bastion",
            run="",
            token="",
            accelerator_type="v4-8",
            runtime_version="",
            agent_arguments="{}",
        )
    )
    for _ in range(15):
        cluster.daemon.tick()
        cluster.clock.advance(1)
    assert [status.node_id for status in cluster.slices.list()] == ["by-hand"]
    assert any("by-hand" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


# -- the gate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("claim", [b"", b"{", b'{"run": "x"}', b"null"])
def test_an_unreadable_claim_does_not_hold_its_slice_for_ever(claim: bytes) -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 3.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    cluster.store.put(keys.claim(f"{uid}-1"), claim, generation=0)
    cluster.settle(5)
    if cluster.status("job") == "ACTIVE":
        cluster.cancel("job", uid)
    cluster.run_until(lambda: not [s for s in cluster.slices.list() if s.run == f"{uid}-1"], steps=120)
    assert not [b for b in cluster.hosts.began if b.run == f"{uid}-1"]


def test_an_order_overwritten_with_garbage_is_written_again() -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 5.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    cluster.restart_daemon()
    overwrite(cluster, keys.order(f"{uid}-1"), b"garbage")
    cluster.restart_daemon()
    cluster.settle(8)
    assert cluster.json(keys.order(f"{uid}-1"))["action"] == "run"
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_a_runs_order_goes_before_its_claim_so_that_a_late_host_finds_nothing_to_run() -> None:
    cluster = Cluster()
    deleted: list[str] = []
    delete = cluster.store.delete

    def noting(key: str, *, generation: int) -> None:
        deleted.append(key)
        delete(key, generation=generation)

    cluster.store.delete = noting  # type: ignore[method-assign]
    cluster.hosts.scripts["job"] = runs_for(1)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.result("job"))
    assert deleted.index(keys.order(f"{uid}-1")) < deleted.index(keys.claim(f"{uid}-1"))


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


# -- outages ----------------------------------------------------------------------------------------------------


def test_an_outage_of_the_bucket_longer_than_the_beat_limit_ends_no_running_job() -> None:
    cluster = Cluster()
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


def test_an_outage_of_writes_alone_ends_no_running_job() -> None:
    cluster = Cluster()
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


def test_a_quota_bucket_that_refuses_us_leaves_the_last_good_file_in_force() -> None:
    cluster = Cluster()
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


def test_a_history_that_cannot_be_written_delays_its_own_job_only() -> None:
    cluster = Cluster()
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


def test_a_renewal_of_the_lease_whose_reply_was_lost_costs_no_ttl() -> None:
    cluster = Cluster()
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    cluster.settle(2)
    faulty.fail_next("put", key=keys.LEASE, fault=Fault.AFTER)
    reports = [cluster.step() for _ in range(6)]
    assert all(report.acted for report in reports)
    assert cluster.json(keys.LEASE)["epoch"] == 1


def test_a_state_missing_in_one_listing_frees_none_of_what_its_job_holds() -> None:
    cluster = Cluster()
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
        assert len(cluster.slices.list()) == 2
    cluster.store.list = plain  # type: ignore[method-assign]
    cluster.settle(10)
    assert len(cluster.slices.list()) == 2


def test_no_new_attempt_starts_while_nodes_cannot_be_listed() -> None:
    cluster = Cluster()
    cluster.submit("job", instance_type="tpu-v4-16")

    def no_answer() -> list:  # type: ignore[type-arg]
        raise ProvisionerUnavailable("no answer")

    cluster.slices.list = no_answer  # type: ignore[method-assign]
    cluster.settle(4)
    assert cluster.slices.created == []
    del cluster.slices.list
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=10)


def test_one_node_that_cannot_be_deleted_keeps_no_other_of_its_job() -> None:
    cluster = Cluster()
    cluster.submit("job", instance_type="tpu-v4-16", num_replicas=3)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    stuck = sorted(status.node_id for status in cluster.slices.list())[0]
    delete = cluster.slices.delete

    def refuses(node_id: str) -> None:
        if node_id == stuck:
            raise ProvisionerUnavailable("cannot delete this one now")
        delete(node_id)

    cluster.slices.delete = refuses  # type: ignore[method-assign]
    cluster.cancel("job")
    cluster.settle(8)
    assert [status.node_id for status in cluster.slices.list()] == [stuck]
    del cluster.slices.delete
    cluster.run_until(lambda: cluster.result("job"), steps=10)


# -- hosts ------------------------------------------------------------------------------------------------------


def test_a_host_that_reported_once_and_never_beat_is_lost_like_any_other() -> None:
    cluster = Cluster()
    cluster.hosts.mute.add(("job", 1))
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=250)
    assert any("worker 1 has not been heard of" in line for line in cluster.history("job"))


def test_a_job_on_another_bastion_host_that_claimed_and_never_beat_starts_anew_in_time() -> None:
    cluster = Cluster()
    cluster.hosts.mute.add(("job", 0))
    uid = cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.bastion_host = FakeProvisioner(cluster.clock)  # another VM: nothing of the old one is listed
    cluster.host_identity = "host-2"
    cluster.restart_daemon()
    before = cluster.clock.monotonic()
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-2"], steps=2500)
    assert cluster.clock.monotonic() - before >= limits.BASTION_HOST_BEAT_LOST_SECONDS


def test_a_flood_of_cleanup_commands_does_not_run_all_at_once() -> None:
    cluster = Cluster()
    for k in range(100):
        cluster.submit(f"job-{k}", instance_type="tpu-v4-128", cleanup_command="echo bye")
    cluster.settle(2)
    for k in range(100):
        cluster.cancel(f"job-{k}")
    most = 0
    for _ in range(400):
        cluster.step()
        most = max(most, len(cluster.bastion_host.list()))
        if not cluster.listed("jobs/states/"):
            break
        for b in cluster.hosts.began:
            cluster.hosts.scripts.setdefault(b.job, runs_for(1))
    assert cluster.listed("jobs/states/") == []
    assert 1 <= most <= limits.BASTION_HOST_JOBS_MAX


# -- growth -----------------------------------------------------------------------------------------------------


def test_a_job_that_waited_for_capacity_for_days_is_still_readable() -> None:
    cluster = Cluster()
    cluster.slices.stockouts = 10**9
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(4)
    document = record_document(cluster, "job")
    past = {**document["attempts"][0], "message": "There is no more capacity in the zone " * 4}
    document["attempts"] = [{**past, "number": k + 1} for k in range(3000)]
    document["next_attempt"] = 3001
    overwrite(cluster, keys.state("job"), json.dumps(document).encode())
    cluster.settle(80)
    record = cluster.record("job")
    assert record is not None
    assert record.next_attempt > 3001
    assert len(record.to_bytes()) < 200_000
    assert record.attempts[-1].number == record.next_attempt - 1 or record.attempt is not None


def test_a_hosts_endless_last_words_do_not_make_the_state_unreadable() -> None:
    cluster = Cluster()
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    key = keys.report(f"{uid}-1", 0)
    report = json.loads(cluster.store.get(key).data)
    report |= {"phase": "failed", "error": "E" * 300_000, "message": "m" * 600_000}
    overwrite(cluster, key, json.dumps(report).encode())
    cluster.settle(5)
    meta = cluster.store.head(keys.state("job"))
    assert meta is not None
    assert meta.size < 20_000


# -- two daemons ------------------------------------------------------------------------------------------------


def test_a_daemon_whose_lease_runs_out_within_a_tick_stops_acting_in_it() -> None:
    cluster = Cluster()
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


def test_a_report_missing_in_one_listing_ends_no_job_that_has_run_for_long() -> None:
    cluster = Cluster()
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


def test_a_half_written_wish_is_not_dropped_until_it_has_been_still() -> None:
    cluster = Cluster()
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.store.put(keys.user_state("job"), b'{"status": "CANC', generation=0)
    cluster.step(0.3)
    cluster.step(0.3)
    overwrite(cluster, keys.user_state("job"), b'{"status": "CANCELLING"}')
    cluster.run_until(lambda: cluster.result("job"), steps=10)
    assert (cluster.result("job") or {})["outcome"] == "cancelled"
