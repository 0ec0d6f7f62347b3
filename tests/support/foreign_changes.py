"""How tests change the daemon's objects behind its back, and see that it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bastion.core.bucket import keys
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


def record_document(cluster: Cluster, name: str) -> dict[str, Any]:
    """The fields of the daemon's record, with `status`."""
    document = json.loads(cluster.store.get(keys.state(name)).data)
    return {**document["metadata"]["record"], "status": document["status"]}


def state_bytes(record: Mapping[str, Any], *, flat: bool = False) -> bytes:
    """A state with these fields, in today's format or in the former, flat one."""
    if flat:
        return json.dumps({**record, "metadata": {}, "format": 1}).encode()
    ours = {key: value for key, value in record.items() if key != "status"}
    metadata = {"format": 2, "record": ours}
    return json.dumps({"metadata": metadata} | ({"status": record["status"]} if "status" in record else {})).encode()
