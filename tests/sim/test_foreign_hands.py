"""Any object of the bucket changed, cut short or removed at any moment: no tick fails, and the next good job runs."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.errors import InvalidDocument
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for

SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "12"))
STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 99, 10**30, 1.5, 1e15, "", "x", "\n", "../x", [], [1], {}, {"a": 1}),
    *("PENDING", "ACTIVE", "CANCELLING", "CLEANING", "COMPLETED"),
    *("2027-01-15T08:00:00.000000Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(data: bytes, chances: random.Random) -> bytes:
    chance = chances.random()
    if chance < 0.1:
        return chances.randbytes(chances.randrange(40))
    if chance < 0.2:
        return data[: chances.randrange(len(data) + 1)]
    try:
        document = json.loads(data)
    except ValueError:
        return b"{}"
    for _ in range(chances.choice([1, 1, 1, 2, 5])):
        found = list(places(document))
        if found:
            *way, last = chances.choice(found)
            parent = document
            for key in way:
                parent = parent[key]
            if chances.random() < 0.2:
                del parent[last]
            else:
                parent[last] = copy.deepcopy(chances.choice(STRANGE))
    return json.dumps(document).encode()


def tick(cluster: Cluster) -> None:
    cluster.daemon.tick()
    # What agents do about strange objects is theirs; here it is the daemon that must go on.
    with contextlib.suppress(InvalidDocument):
        cluster.hosts.step([*cluster.slices.live_slices(), *cluster.bastion_host.live_slices()])
    cluster.clock.advance(1)


@pytest.mark.parametrize(
    ("inbox", "seed"), [*(("", seed) for seed in range(SEEDS)), *(("alice", seed) for seed in range(SEEDS // 3))]
)
@pytest.mark.parametrize("page", [limits.LIST_PAGE_OBJECTS, 2], ids=["listed-whole", "listed-piece-by-piece"])
def test_no_object_that_anybody_changes_stops_the_daemon(
    inbox: str, seed: int, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIST_PAGE_OBJECTS", page)
    chances = random.Random(seed)
    cluster = Cluster()
    if inbox:
        cluster.use_inboxes()
    for number in range(4):
        size, cleanup = chances.choice(["", "tpu-v4-16", "tpu-v4-32"]), chances.choice([None, "echo bye"])
        cluster.submit(f"job-{number}", inbox=inbox, instance_type=size, cleanup_command=cleanup)
        cluster.hosts.scripts[f"job-{number}"] = runs_for(chances.choice([2, 20]))
    for _ in range(60):
        if chances.random() < 0.3:
            stored = cluster.store.get(chances.choice([key for key in cluster.listed() if not key.startswith("logs/")]))
            if chances.random() < 0.15:
                cluster.store.delete(stored.meta.key, generation=stored.meta.generation)
            else:
                data = changed(stored.data, chances)
                cluster.store.put(stored.meta.key, data, generation=stored.meta.generation)
        if chances.random() < 0.05:
            cluster.restart_daemon()
        tick(cluster)
    cluster.write_quota(QUOTA)
    if inbox:
        cluster.use_inboxes()
        cluster.restart_daemon()
    cluster.hosts.scripts["good"] = runs_for(1)
    cluster.submit("good", inbox=inbox)
    for _ in range(40):
        tick(cluster)
    assert (cluster.result("good") or {})["outcome"] == "succeeded"
