"""How tests change the daemon's objects behind its back, and see that it goes on."""

from __future__ import annotations

import json

from bastion.core import keys
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for


def overwrite(cluster: Cluster, key: str, data: bytes) -> None:
    meta = cluster.store.head(key)
    cluster.store.put(key, data, generation=meta.generation if meta else 0)


def check_a_good_job_runs(cluster: Cluster) -> None:
    cluster.hosts.scripts["good"] = runs_for(1)
    cluster.submit("good")
    cluster.run_until(lambda: "completed: succeeded" in "".join(cluster.history("good")), steps=25)
    assert (cluster.result("good") or {})["outcome"] == "succeeded"


def record_document(cluster: Cluster, name: str) -> dict:  # type: ignore[type-arg]
    return dict(json.loads(cluster.store.get(keys.state(name)).data))
