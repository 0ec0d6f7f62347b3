"""Attempts in the result of a job of a simulated bastion, as if it had had them."""

from __future__ import annotations

from collections.abc import Iterable

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster


def add_attempts(cluster: Cluster, job: str, numbers: Iterable[int], *, cleanup: bool = False) -> None:
    document = cluster.json(keys.complete(job))
    result = document["result"]

    def public_key(attempt: str) -> str:
        return cluster.run_keys.drawn(f"{result['uid']}-{attempt}").public

    first = result["attempts"][0]
    result["attempts"] += [{**first, "number": number, "public_key": public_key(str(number))} for number in numbers]
    if cleanup:
        result["cleanup"] = {"tries": 1, "outcome": "succeeded", "public_keys": [public_key("cleanup")]}
    meta = cluster.store.head(keys.complete(job))
    assert meta is not None
    cluster.store.put(keys.complete(job), documents.dumps(document), generation=meta.generation)
