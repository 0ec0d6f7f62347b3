"""The documents that AXLearn's client builds objects from: exactly the keys of its classes, in every state of a job.

The classes below have the fields of its own, written anew; a key too many or too few fails as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bastion.client.jobs import Client
from bastion.core import keys
from bastion.core.lifecycle import Status
from bastion.testing.cluster import BASTION, ROOT, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.sim.foreign_changes import overwrite, record_document, state_bytes


@dataclass
class JobState:
    """What a state and a user state are read into."""

    status: str
    metadata: dict[str, Any] = field(default_factory=dict)


class AtTheRoot:
    url, bastion, local = ROOT, BASTION, False


def state_as_read(cluster: Cluster, key: str) -> JobState:
    state = JobState(**json.loads(cluster.store.get(key).data))
    state.status = Status[state.status.strip().upper()]
    return state


def states_through_life(cluster: Cluster, name: str) -> Iterator[JobState]:
    for _ in range(60):
        cluster.settle(1)
        if cluster.store.head(keys.state(name)) is None:
            return
        yield state_as_read(cluster, keys.state(name))
    raise AssertionError(f"{name} did not end")


@pytest.mark.parametrize("instance_type", ["", "tpu-v4-16"])
def test_a_state_is_read_back_whatever_the_job_does(instance_type: str) -> None:
    cluster = Cluster()
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.submit("job", instance_type=instance_type)
    seen = list(states_through_life(cluster, "job"))
    assert {Status.PENDING, Status.ACTIVE} <= {state.status for state in seen}
    # Its table of jobs has a column for the tier.
    assert {state.metadata.get("tier") for state in seen if state.status is Status.ACTIVE} == {0}
    assert (cluster.result("job") or {})["outcome"] == "succeeded"


def test_a_flat_state_of_an_older_version_is_read_back_after_its_next_change() -> None:
    cluster = Cluster()
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    overwrite(cluster, keys.state("job"), state_bytes(record_document(cluster, "job"), flat=True))
    with pytest.raises(TypeError):
        state_as_read(cluster, keys.state("job"))
    cluster.restart_daemon()
    cluster.settle(3)
    assert cluster.hosts.live("job") == [f"{uid}-1"]
    cluster.cancel("job", uid=uid)
    seen = list(states_through_life(cluster, "job"))
    assert Status.CANCELLING in {state.status for state in seen}
    assert (cluster.result("job") or {})["outcome"] == "cancelled"


def test_a_cancel_of_ours_is_read_back_and_one_of_its_own_is_honored() -> None:
    cluster = Cluster()
    for name in ("ours", "theirs"):
        cluster.submit(name)
    cluster.run_until(lambda: cluster.hosts.live("ours") and cluster.hosts.live("theirs"))
    Client(cluster.store, AtTheRoot(), cluster.clock).cancel("ours", by="alice")
    request = state_as_read(cluster, keys.user_state("ours"))
    assert (request.status, request.metadata["by"]) == (Status.CANCELLING, "alice")
    overwrite(cluster, keys.user_state("theirs"), b'{"status": "CANCELLING", "metadata": {}}')
    cluster.run_until(lambda: cluster.result("ours") and cluster.result("theirs"))
    assert (cluster.result("ours") or {})["by"] == "alice"
    assert (cluster.result("theirs") or {})["outcome"] == "cancelled"
