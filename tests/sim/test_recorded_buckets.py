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
from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.memory_store import MemoryStore, _Object
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import Root

OF_THEN = "0f" * 32
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
        # Hosts of then have no key that this daemon knows: nothing that they write counts. They obey orders.
        arguments = json.loads(gang["agent_arguments"]) | {"run_key": OF_THEN}
        request = GangRequest(ref=ref, **{**gang, "agent_arguments": json.dumps(arguments)})
        cluster.slices.create(request)
        running.append((request, 0))
        cluster.hosts.step(running)
    cluster.hosts.scripts |= {"running": runs_for(60), "owner": runs_for(200), "evicted": runs_for(5)}
    cluster.hosts.scripts |= {"waiting": runs_for(5)}
    return cluster


def test_running_attempts_of_then_are_stopped_and_run_again_and_never_twice_at_once(
    cluster: Cluster, recorded: dict[str, Any]
) -> None:
    names = ("running", "owner")
    again = [[f"{recorded['uids'][name]}-2"] for name in names]
    assert all(len(cluster.hosts.live(name)) == 1 for name in names)

    def run_again() -> bool:
        assert all(len(cluster.hosts.live(name)) <= 1 for name in names)
        return [cluster.hosts.live(name) for name in names] == again

    cluster.hosts.scripts |= dict.fromkeys(names, runs_for(3000))
    cluster.run_until(run_again, steps=300)
    for name in names:
        record = cluster.record(name)
        assert record is not None
        assert [past.cause.value for past in record.attempts] == ["infrastructure"]
        assert "an earlier version of the bastion started them" in record.attempts[0].message
        assert cluster.json(keys.order(f"{record.uid}-1"))["action"] == "stop"


def test_every_job_ends_as_its_command_says_and_keeps_its_history(cluster: Cluster, recorded: dict[str, Any]) -> None:
    before = {name: cluster.history(name) for name in recorded["uids"]}
    names = ("running", "owner", "evicted", "waiting")
    cluster.run_until(lambda: all(cluster.result(name) for name in names), steps=600)
    for name in names:
        result = cluster.result(name)
        assert result is not None
        assert (result["outcome"], result["uid"]) == ("succeeded", recorded["uids"][name])
    attempts = {name: len((cluster.result(name) or {})["attempts"]) for name in names}
    assert attempts == {"running": 2, "owner": 2, "evicted": 2, "waiting": 1}
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
