"""Whoever may write the bucket may write anything: it harms the writer's own job, and nobody else."""

from __future__ import annotations

import json

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for


def spec(name: str, **metadata: object) -> bytes:
    document = {
        "version": 1,
        "name": name,
        "command": "echo hi",
        "metadata": {
            "user_id": "alice",
            "project_id": "a",
            "creation_time": "2026-01-02 03:04:05.000006",
            "resources": {"v4": 8},
            **metadata,
        },
    }
    return json.dumps(document).encode()


HOSTILE = {
    "../../escape": spec("../../escape"),
    "..": spec(".."),
    "a/b": spec("a/b"),
    "folder/": b"",
    "x" * 200: spec("x" * 200),
    f"{BASTION}": spec(BASTION),
    f"{BASTION}-20260101": spec(f"{BASTION}-20260101"),
    "victim.cleanup": spec("victim.cleanup"),
    "victim~aaaaaaaaaa": spec("victim~aaaaaaaaaa"),
    "new\u2028line": spec("new\u2028line"),
    "negative": spec("negative", resources={"v4": -64}),
    "absurd": spec("absurd", resources={"v4": 10**12}),
    "float": spec("float", resources={"v4": 0.5}),
    "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "twice": b'{"version": 1, "version": 1}',
    "other-name": spec("somebody-else"),
    "huge": b"x" * (limits.SPEC_MAX_BYTES + 1),
    "binary": bytes(range(256)),
    "empty": b"",
    "surrogate": b'{"version": 1, "name": "surrogate", "command": "\\udc80"}',
    "number": b"1e999",
    "many-types": spec("many-types", resources={f"t{i}": 1 for i in range(1000)}),
    "priority": spec("priority", priority=-1),
    "underpaid": spec("underpaid")[:-1] + b', "runner": {"kind": "tpu", "instance_type": "tpu-v4-2048"}}',
}


def test_every_hostile_spec_is_explained_and_a_good_job_runs_beside_all_of_them(cluster: Cluster) -> None:
    cluster.hosts.scripts["victim"] = runs_for(2)
    for name, data in HOSTILE.items():
        cluster.store.put(keys.JOBS_ACTIVE + name, data, generation=0)
    cluster.submit("victim", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.result("victim"), steps=20)
    cluster.settle(3)
    explained = {cluster.json(key)["name"]: cluster.json(key)["problem"] for key in cluster.listed("jobs/invalid/")}
    assert set(explained) == set(HOSTILE)
    assert all(explained.values())
    assert cluster.hosts.began[0].job == "victim"
    assert {began.job for began in cluster.hosts.began} == {"victim"}
    assert cluster.slices.list() == []
    published = json.loads(cluster.store.get(keys.STATUS).data)
    assert {entry["name"] for entry in published["invalid"]} == set(HOSTILE)


def test_an_oversized_spec_is_refused_without_being_downloaded(cluster: Cluster) -> None:
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    cluster.store.put(keys.active("huge"), HOSTILE["huge"], generation=0)
    cluster.settle(4)
    assert cluster.json(keys.invalid("huge"))["problem"].startswith("the spec is 65537 bytes long")
    assert keys.active("huge") not in counting.read


def test_a_half_written_spec_is_not_quarantined_until_it_has_been_still(cluster: Cluster) -> None:
    cluster.store.put(keys.active("job"), b'{"version": 1, "na', generation=0)
    cluster.step(0.2)
    cluster.step(0.2)
    assert cluster.listed("jobs/invalid/") == []
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=20)


@pytest.mark.parametrize(
    "user_request",
    [
        b"",
        b"CANCELLING",
        b"cancelling\n",
        b'{"status": "ACTIVE"}',
        b"{",
        b'{"status": ["CANCELLING"]}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_a_strange_wish_cancels_or_is_dropped_and_never_stops_the_daemon(cluster: Cluster, user_request: bytes) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.store.put(keys.user_state("job"), user_request, generation=0)
    cluster.settle(6)
    cancelled = user_request.strip().upper() == b"CANCELLING"
    assert bool(cluster.result("job")) is cancelled
    assert cluster.listed("jobs/user_states/") == []


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'{"phase": "exited"}', b"[[[[", b'{"host": -1}', b"null"])
def test_garbage_among_reports_claims_and_beats_changes_nothing(cluster: Cluster, data: bytes) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for key in (
        keys.report(f"{uid}-1", 7),
        keys.report(f"{uid}-2", 0),
        f"runs/{uid}-1/reports/x",
        "runs/nonsense/order",
        "beats/nonsense",
        "beats/a.b.c",
        "jobs/claims/nonsense",
    ):
        cluster.store.put(key, data, generation=0)
    cluster.settle(8)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_a_forged_report_that_the_runs_key_did_not_sign_does_not_end_a_job(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    key = keys.report(f"{uid}-1", 0)
    meta = cluster.store.head(key)
    assert meta is not None
    forged = {"run": f"{uid}-1", "host": 0, "signature": "guess", "phase": "exited", "exit_code": 0}
    cluster.store.put(key, json.dumps(forged).encode(), generation=meta.generation)
    cluster.settle(5)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


@pytest.mark.parametrize("options", [b"", b"{", b'{"scheduler": {"dry_run": "yes"}}', b"[]", b"\xff"])
def test_broken_runtime_options_are_told_and_the_last_good_stay(cluster: Cluster, options: bytes) -> None:
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.store.put(keys.RUNTIME_OPTIONS, options, generation=0)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=20)
    assert any("runtime_options" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])


def test_a_broken_lease_is_taken_over_after_its_ttl(cluster: Cluster) -> None:
    cluster.store.put(keys.LEASE, b"\xff garbage", generation=0)
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=30)


def content_of(status: bytes) -> dict[str, object]:
    """What a status says but for the users' usage, which goes on by itself."""
    document: dict[str, object] = json.loads(status)
    del document["usage"]
    return document


def test_a_status_that_somebody_changed_or_removed_is_written_again_in_the_next_tick(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-128")
    cluster.settle(4)
    published = cluster.store.get(keys.STATUS)
    cluster.store.put(keys.STATUS, b"garbage", generation=published.meta.generation)
    cluster.settle(1)
    assert content_of(cluster.store.get(keys.STATUS).data) == content_of(published.data)
    meta = cluster.store.head(keys.STATUS)
    assert meta is not None
    cluster.store.delete(keys.STATUS, generation=meta.generation)
    cluster.settle(1)
    assert content_of(cluster.store.get(keys.STATUS).data) == content_of(published.data)


def test_an_enormous_status_or_lease_is_replaced_without_being_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATUS_MAX_BYTES", 10_000)
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.store.put(keys.STATUS, b"x" * 10_001, generation=0)
    cluster.store.put(keys.LEASE, b"x" * (limits.DOCUMENT_MAX_BYTES + 1), generation=0)
    cluster.daemon = cluster.new_daemon(counting)
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=30)
    assert cluster.json(keys.STATUS)["bastion"] == BASTION
    assert keys.STATUS not in counting.read
    assert keys.LEASE not in counting.read


def test_of_an_enormous_history_only_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_TAIL_BYTES", 100)
    cluster = Cluster()
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.store.put(keys.job_history("job"), b"old line\n" * 1000, generation=0)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"), steps=30)
    assert cluster.history("job")[:1000] == ["old line"] * 1000
    assert len(cluster.history("job")) > 1003
