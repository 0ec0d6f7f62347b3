"""Whoever may write the bucket may write anything: it harms the writer's own job, and nobody else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from random import Random

import pytest

import quota
from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import BastionError
from bastion.core.model import identity, job_record, lease
from bastion.daemon.observe.policy_source import RuntimeOptions
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.fuzz.documents_targets import bucket
from tests.fuzz.mangling import Form, mangled


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


# -- mangled objects under every prefix -----------------------------------------------------------------------------

PREFIXES = (
    *("jobs/active/", "jobs/user_states/", "jobs/states/", "jobs/invalid/", "jobs/claims/", "jobs/complete/"),
    *("runs/", "beats/", "logs/", "outputs/", "results/", "history/jobs/", "history/projects/", "bundles/", "agents/"),
    *("inputs/", "inbox/mallory/active/", "inbox/mallory/user_states/", "inbox/../active/", "config/", "doctor/"),
    *("project-quotas/former/", "status/", ""),
)
# One object each. Of those with which people steer the bastion, a valid change is a change, so only others are written.
# Broken settings without earlier ones rightly keep slices from being created, so they are not among them.
STEERING: dict[str, Callable[[bytes], object]] = {
    keys.RUNTIME_OPTIONS: lambda data: RuntimeOptions.model_validate(documents.loads(data)),
    keys.IDENTITY: identity.read,
    keys.LEASE: lease.read,
    keys.PROJECT_QUOTAS: quota.load,
}
# The daemon's copies of those, from which a new one goes on if they are broken.
IN_FORCE = (keys.QUOTAS_IN_FORCE, keys.SETTINGS_IN_FORCE, keys.OPTIONS_IN_FORCE, keys.IDENTITY_IN_FORCE)
TICKS = 60
PER_TICK = 20


def mangled_objects(random: Random, honest: Collection[str]) -> dict[str, bytes]:
    """Objects of a stranger: keys as those of real ones, and contents as real ones, both mangled."""
    real = [*bucket().items()]
    found: dict[str, bytes] = {}
    for _ in range(PER_TICK):
        prefix = random.choice(PREFIXES)
        key, data = random.choice([each for each in real if each[0].startswith(prefix)] or real)
        if random.random() < 0.3:
            data = random.choice(real)[1]
        # The stranger is no member of a project.
        data = mangled(random, data.replace(b'"alice"', b'"mallory"').replace(b'"bob"', b'"mallory"'), Form.JSON)
        name = key.removeprefix(prefix)
        if random.random() < 0.4:
            name = mangled(random, name.encode(), Form.BYTES).decode("utf-8", "replace")
        key = f"{prefix}{random.choice(('', 'x-', '²'))}{name}"[:900]
        # A state that can be read holds capacity, whoever wrote it: only rights keep others from writing there.
        stateful = key.startswith(keys.JOBS_STATES) and not is_refused(state_of, data)
        if key not in (*STEERING, *IN_FORCE) and not stateful and not any(each in key for each in honest):
            found[key] = data
    return found


def state_of(data: bytes) -> object:
    """The state in an object that has the name of the job in it."""
    name = json.loads(data)["metadata"]["record"]["name"]
    return job_record.read(data, name=name)


def is_refused(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except (BastionError, ValueError, LookupError, TypeError, RecursionError):
        return True
    return False


def overwrite_or_not(cluster: Cluster, key: str, data: bytes) -> bool:
    """Write an object over what is there; whether the store has such keys."""
    try:
        meta = cluster.store.head(key)
        cluster.store.put(key, data, generation=meta.generation if meta else 0)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", range(max(2, int(os.environ.get("BASTION_SIM_SEEDS", "2")) // 100)))
def test_honest_jobs_end_properly_while_a_stranger_writes_mangled_objects_under_every_prefix(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    random = Random(f"mangled {seed}")
    cluster = Cluster()
    cluster.settle(2)  # the last good quota file is known
    scripts = {"quick": runs_for(3), "failing": runs_for(4, code=3), "long": runs_for(40), "on-bastion": runs_for(5)}
    cluster.hosts.scripts |= scripts
    uids = [
        cluster.submit("quick", instance_type="tpu-v4-8", cleanup_command="true"),
        cluster.submit("failing", instance_type="tpu-v4-16", max_tries=2),
        cluster.submit("long", instance_type="tpu-v4-32", user="bob", project="b"),
        cluster.submit("on-bastion", user="bob", project="b"),
        cluster.submit("cancelled", instance_type="tpu-v4-8"),
    ]
    jobs = [*scripts, "cancelled"]
    written = 0
    for tick in range(TICKS):
        for key, data in mangled_objects(random, [*jobs, *uids]).items():
            written += overwrite_or_not(cluster, key, data)
        key, read = random.choice([*STEERING.items()])
        data = mangled(random, bucket().get(key, b'{"a": 1}'), Form.JSON)
        # A lease that nobody can read is taken over after its time, and nothing happens until then.
        if is_refused(read, data) and (key != keys.LEASE or tick % 20 == 7):
            written += overwrite_or_not(cluster, key, data)
        if tick == 10:
            cluster.cancel("cancelled")
        if tick == 30:
            cluster.restart_daemon()
        cluster.step()
    for _ in range(120):
        if not all(map(cluster.result, jobs)):
            cluster.step()
    outcomes = {job: (cluster.result(job) or {})["outcome"] for job in jobs}
    assert outcomes == {
        "quick": "succeeded",
        "failing": "failed",
        "long": "succeeded",
        "on-bastion": "succeeded",
        "cancelled": "cancelled",
    }
    assert {began.job for began in cluster.hosts.began} == set(jobs)
    cluster.settle(10)
    assert cluster.slices.list() == []
    status = cluster.json(keys.STATUS)
    assert status["daemon"]["failed_ticks"] == 0
    assert written > TICKS * PER_TICK / 2
    record_property("mangled objects", written)
