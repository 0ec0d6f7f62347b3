"""Buckets that earlier versions wrote, with running, evicted, waiting and finished jobs, are taken over.

`recorded/<commit>.json` holds every object of a simulated bucket as the daemon of that commit left it, and its gangs.
"""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from typing import Any

import pytest

from bastion.client import Client
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import Claim
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.memory_store import MemoryStore, _Object
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import Root

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(request.param.read_text())
    return document


@pytest.fixture
def cluster(recorded: dict[str, Any]) -> Cluster:
    """The bucket and the gangs as they were recorded; no daemon has looked yet."""
    cluster = Cluster(quota=None)
    cluster.clock.advance(recorded["now"] - cluster.clock.now() + 10)
    store = cluster.store
    assert isinstance(store, MemoryStore)
    for each in recorded["objects"]:
        data = each["data"].encode()
        meta = ObjectMeta(key=each["key"], size=len(data), generation=each["generation"], updated=each["updated"])
        store._objects[meta.key] = _Object(meta, bytearray(data))
        bisect.insort(store._keys, meta.key)
        store._generation = max(store._generation, meta.generation)
    running = []
    for gang in recorded["gangs"]:
        ref = GangRef(name=gang.pop("name"), zone=gang.pop("zone"), num_slices=gang.pop("num_slices"))
        request = GangRequest(ref=ref, **gang)
        cluster.slices.create(request)
        claim = protocol.read(Claim, store.get(keys.claim(request.run)).data)
        cluster.hosts._boots = int(claim.boot_id.rpartition("-")[2]) - 1  # the same hosts as before
        running.append((request, 0))
        cluster.hosts.step(running)
    cluster.hosts.scripts |= {"running": runs_for(60), "owner": runs_for(200), "evicted": runs_for(5)}
    cluster.hosts.scripts |= {"waiting": runs_for(5)}
    return cluster


def test_running_jobs_go_on_as_the_attempts_that_they_are(cluster: Cluster, recorded: dict[str, Any]) -> None:
    runs = [f"{recorded['uids'][name]}-1" for name in ("running", "owner")]
    cluster.settle(20)
    assert [cluster.hosts.live(name) for name in ("running", "owner")] == [[run] for run in runs]
    assert cluster.slices.deleted == []
    assert {name: cluster.status(name) for name in ("running", "owner", "evicted", "waiting")} == {
        "running": "ACTIVE", "owner": "ACTIVE", "evicted": "PENDING", "waiting": "PENDING",
    }  # fmt: skip


def test_every_job_ends_as_its_command_says_and_keeps_its_history(cluster: Cluster, recorded: dict[str, Any]) -> None:
    before = {name: cluster.history(name) for name in recorded["uids"]}
    names = ("running", "owner", "evicted", "waiting")
    cluster.run_until(lambda: all(cluster.result(name) for name in names), steps=600)
    for name in names:
        result = cluster.result(name)
        assert result is not None
        assert (result["outcome"], result["uid"]) == ("succeeded", recorded["uids"][name])
    attempts = {name: len((cluster.result(name) or {})["attempts"]) for name in names}
    assert attempts == {"running": 1, "owner": 1, "evicted": 2, "waiting": 1}
    for name, lines in before.items():
        after = cluster.history(name)
        assert after[: len(lines)] == lines
        marks = [line.split()[1] for line in after]
        assert len(set(marks)) == len(marks)


def test_what_ended_before_is_read(cluster: Cluster, recorded: dict[str, Any]) -> None:
    cluster.settle(3)
    client = Client(cluster.store, Root(bucket="memory", bastion=BASTION), cluster.clock)
    results, number = client.completed(limit=10)
    assert number == 2
    assert {(result.name, result.outcome, result.exit_code) for result in results} == {
        ("finished", "succeeded", 0),
        ("failed", "failed", 7),
    }
    assert set(client.entries()) == {"running", "owner", "evicted", "waiting"}
    assert "is refused" not in (client.require("running").problem or "")


def test_a_cancel_and_an_update_of_a_job_of_then_are_honored(cluster: Cluster, recorded: dict[str, Any]) -> None:
    cluster.settle(3)
    cluster.cancel("owner", recorded["uids"]["owner"])
    cluster.submit("waiting", instance_type="tpu-v4-8", version=1)
    cluster.run_until(lambda: cluster.result("owner"), steps=80)
    assert (cluster.result("owner") or {})["outcome"] == "cancelled"
    uid = recorded["uids"]["waiting"]
    assert any(f" {uid}#" in line and "version 1" in line for line in cluster.history("waiting"))
