"""The documents that AXLearn's client builds objects from: exactly the keys of its classes, in every state of a job.

The classes below have the fields of its own, written anew; a key too many or too few fails as it does there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pytest

from bastion.client.jobs.client import Client
from bastion.core.bucket import keys
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.core.model.lifecycle import Status
from bastion.testing.cluster import BASTION, ROOT, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import overwrite, record_document, state_bytes


@dataclass
class JobState:
    """What a state and a user state are read into."""

    status: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class JobMetadata:
    """What a spec's `metadata` is read into, without unknown fields (axlearn/cloud/common/bastion.py)."""

    user_id: str
    project_id: str
    creation_time: str
    resources: dict[str, int]
    priority: int = 5
    job_id: str | None = None
    version: int | None = None
    topologies: list[Any] | None = None
    scaling_specs: list[Any] | None = None


def metadata_as_read(cluster: Cluster, name: str) -> JobMetadata:
    metadata = json.loads(cluster.store.get(keys.active(name)).data)["metadata"]
    known = {each.name for each in fields(JobMetadata)}
    return JobMetadata(**{key: value for key, value in metadata.items() if key in known})


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
def test_a_state_is_read_back_whatever_the_job_does(cluster: Cluster, instance_type: str) -> None:
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.submit("job", instance_type=instance_type)
    seen = list(states_through_life(cluster, "job"))
    assert {Status.PENDING, Status.ACTIVE} <= {state.status for state in seen}
    # Its table of jobs has a column for the tier.
    assert {state.metadata.get("tier") for state in seen if state.status is Status.ACTIVE} == {0}
    assert (cluster.result("job") or {})["outcome"] == "succeeded"


def test_a_flat_state_of_an_older_version_is_read_back_after_its_next_change(cluster: Cluster) -> None:
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


def test_a_cancel_of_ours_is_read_back_and_one_of_its_own_is_honored(cluster: Cluster) -> None:
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


def put_back(cluster: Cluster, name: str, **metadata: Any) -> None:
    """What its `update_job` does: the spec that lies there, less what its classes lack, with another command."""
    spec = json.loads(cluster.store.get(keys.active(name)).data)
    spec.pop("runner", None)
    spec["command"] = "bash run.sh --again"
    spec["metadata"] |= metadata
    overwrite(cluster, keys.active(name), json.dumps(spec).encode())


def test_its_update_of_a_slice_job_keeps_the_slices(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16", max_tries=3)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for version in (1, 2):
        put_back(cluster, "job", version=version)
        cluster.run_until(lambda attempt=version + 1: cluster.hosts.live("job") == [f"{uid}-{attempt}"])
        record = cluster.record("job")
        assert record is not None
        assert (record.job.version, record.job.command) == (version, "bash run.sh --again")
        assert record.job.runner is not None
        assert (record.job.runner.instance_type.name, record.job.runner.max_tries) == ("tpu-v4-16", 3)
        assert cluster.in_use({f"{uid}-{version + 1}"}) == 16
    cluster.restart_daemon()
    cluster.settle(3)
    assert cluster.hosts.live("job") == [f"{uid}-3"]


def test_a_spec_with_image_and_labels_is_read_and_its_update_keeps_both(cluster: Cluster) -> None:
    options = JobOptions(instance_type="tpu-v4-16", image="train:v1", labels={"team": "vision"})
    spec = job_spec.new(
        name="job", bastion=BASTION, command="run", user_id="alice", project_id="a", now=0, options=options
    )
    cluster.put_spec("job", spec.to_bytes())
    cluster.settle(3)
    read = metadata_as_read(cluster, "job")
    assert (read.user_id, read.resources, read.job_id) == ("alice", {"v4": 16}, None)
    read.version = 1
    written = json.loads(cluster.store.get(keys.active("job")).data)
    kept = {key: written[key] for key in ("version", "name", "command", "cleanup_command", "env_vars")}
    overwrite(cluster, keys.active("job"), json.dumps({**kept, "metadata": asdict(read)}).encode())
    cluster.settle(3)
    record = cluster.record("job")
    assert record is not None
    assert (record.job.version, record.job.labels) == (1, {"team": "vision"})
    assert record.job.runner is not None
    assert record.job.runner.image == "train:v1"


def test_its_update_of_a_waiting_slice_job_keeps_the_slices(cluster: Cluster) -> None:
    cluster.submit("holder", instance_type="tpu-v4-64", project="b", user="bob")
    cluster.run_until(lambda: cluster.hosts.live("holder"))
    cluster.submit("job", instance_type="tpu-v4-64", project="b", user="bob")
    cluster.settle(3)
    put_back(cluster, "job", version=1)
    cluster.settle(3)
    assert (cluster.status("job"), cluster.hosts.live("job")) == ("PENDING", [])
    record = cluster.record("job")
    assert record is not None
    assert record.job.version == 1
    assert record.job.runner is not None


def test_its_update_with_resources_that_do_not_fit_is_refused_and_the_job_runs_on(cluster: Cluster) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    put_back(cluster, "job", version=1, resources={"v4": 8})
    cluster.settle(6)
    assert cluster.hosts.live("job") == [f"{uid}-1"]
    explained = cluster.json(keys.invalid("job"))
    assert "the present one (1 x tpu-v4-16) needs metadata.resources {'v4': 16}" in explained["problem"]
    put_back(cluster, "job", version=1, resources={"v4": 16})
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-2"])
    assert cluster.json(keys.invalid("job")) is None


def test_another_job_of_that_name_without_a_runner_gets_none(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    put_back(cluster, "job", version=7)
    cluster.run_until(lambda: "another job" in "".join(cluster.history("job")))
    cluster.run_until(lambda: (cluster.result("job") or {}).get("outcome") == "cancelled" or cluster.hosts.live("job"))
    cluster.settle(5)
    record = cluster.record("job")
    assert record is not None
    assert (record.job.version, record.job.runner) == (7, None)
