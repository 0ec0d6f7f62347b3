"""Objects of a strange form, content or size: at most their own job is concerned."""

from __future__ import annotations

import pytest

from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Report
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import check_a_good_job_runs, overwrite, record_document, state_bytes

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
        ("lease", '{"owner": "x", "epoch": 1, "process": "\u00b2:1"}'.encode()),
        ("lease", b'{"owner": "x", "epoch": 1, "process": "1:' + b"9" * 5000 + b'"}'),
    ],
)
def test_an_object_of_a_strange_form_stops_nobody(cluster: Cluster, key: str, data: bytes) -> None:
    cluster.store.put(key, data, generation=0)
    cluster.settle(8)
    check_a_good_job_runs(cluster)


@pytest.mark.parametrize(
    "extra", [b"1e999", b"-1e999", b"[" * 31 + b"]" * 31, b"9" * 4000, b"1.5e-400", b'"\\ud83d\\ude00"']
)
def test_a_spec_with_strange_unknown_fields_is_refused_or_survives_a_restart(cluster: Cluster, extra: bytes) -> None:
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
@pytest.mark.parametrize(("restarted", "flat"), [(False, False), (True, False), (True, True)])
def test_a_state_of_strange_content_freezes_its_own_job_at_most(
    cluster: Cluster, change: dict[str, object], restarted: bool, flat: bool
) -> None:
    uid = cluster.submit("bad")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    document = {k: v for k, v in {**record_document(cluster, "bad"), **change}.items() if v is not None}
    overwrite(cluster, keys.state("bad"), state_bytes(document, flat=flat))
    if restarted:
        cluster.restart_daemon()
    check_a_good_job_runs(cluster)
    cluster.settle(8)
    assert cluster.hosts.live("bad") == [f"{uid}-1"]
    assert any("bad" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_a_negative_charge_in_a_state_gives_nobody_room(cluster: Cluster) -> None:
    cluster.submit("bad", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    document = record_document(cluster, "bad")
    document["attempt"]["charged"] = {"v4": -1000}
    overwrite(cluster, keys.state("bad"), state_bytes(document))
    for k in range(4):
        cluster.submit(f"more-{k}", instance_type="tpu-v4-32")
    cluster.settle(8)
    assert len(cluster.slices.list()) <= 2


def test_the_nodes_of_a_job_whose_state_cannot_be_read_are_nobodys_to_sweep(cluster: Cluster) -> None:
    uid = cluster.submit("bad", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    good = cluster.store.get(keys.state("bad")).data
    overwrite(cluster, keys.state("bad"), good.replace(b'"format":2', b'"format":3'))
    cluster.restart_daemon()
    cluster.settle(15)
    assert cluster.hosts.live("bad") == [f"{uid}-1"]
    overwrite(cluster, keys.state("bad"), good)
    cluster.hosts.scripts["bad"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("bad"), steps=20)


def test_an_object_too_large_to_be_ours_is_not_downloaded(cluster: Cluster) -> None:
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
    from bastion.core.model.gangs import GangRef, GangRequest

    cluster = Cluster()
    cluster.slices.create(
        GangRequest(
            ref=GangRef(name="by-hand"),
            bastion="test-bastion",
            run="",
            token="",
            accelerator_type="v4-8",
            agent_arguments="{}",
        )
    )
    for _ in range(15):
        cluster.daemon.tick()
        cluster.clock.advance(1)
    assert [status.ref.name for status in cluster.slices.list()] == ["by-hand"]
    assert any("by-hand" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


# -- growth -----------------------------------------------------------------------------------------------------


def test_a_job_that_waited_for_capacity_for_days_is_still_readable(cluster: Cluster) -> None:
    cluster.slices.stockouts = 10**9
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(4)
    document = record_document(cluster, "job")
    past = {**document["attempts"][0], "message": "There is no more capacity in the zone " * 4}
    document["attempts"] = [{**past, "number": k + 1} for k in range(3000)]
    document["next_attempt"] = 3001
    overwrite(cluster, keys.state("job"), state_bytes(document))
    cluster.settle(80)
    record = cluster.record("job")
    assert record is not None
    assert record.next_attempt > 3001
    assert len(record.to_bytes()) < 200_000
    assert record.attempts[-1].number == record.next_attempt - 1 or record.attempt is not None


def changed_by_its_host(cluster: Cluster, key: str, changes: dict[str, object]) -> bytes:
    """A report as its host would write it with these changes, signed."""
    report = Report.model_validate(cluster.json(key) | changes)
    return protocol.sign(report, cluster.key_of(report.run)).to_bytes()


def test_a_hosts_endless_last_words_do_not_make_the_state_unreadable(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    key = keys.report(f"{uid}-1", 0)
    changes = {"phase": "failed", "error": "E" * 300_000, "message": "m" * 600_000}
    overwrite(cluster, key, changed_by_its_host(cluster, key, changes))
    cluster.settle(5)
    meta = cluster.store.head(keys.state("job"))
    assert meta is not None
    assert meta.size < 20_000


@pytest.mark.parametrize("ended_at", ["9999-12-31T23:59:59.9Z", "9999-12-31T23:59:59-14:00"], ids=["last", "beyond"])
def test_a_hosts_clock_at_the_end_of_the_calendar_does_not_make_the_state_unreadable(
    cluster: Cluster, ended_at: str
) -> None:
    cluster.hosts.scripts["job"] = lambda _host, _elapsed: None
    uid = cluster.submit("job", instance_type="tpu-v4-8", max_tries=2)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.hosts.stuck.add(("job", 0))
    key = keys.report(f"{uid}-1", 0)
    changes = {"phase": "exited", "exit_code": 1, "ended_at": ended_at}
    overwrite(cluster, key, changed_by_its_host(cluster, key, changes))
    cluster.settle(3)
    record = cluster.record("job")
    assert record is not None
    assert record.attempt is not None
    assert record.attempt.restart is not None
