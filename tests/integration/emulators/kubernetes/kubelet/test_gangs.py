"""JobSets with processes on either API server: controllers and kubelet are clients of it, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion import processes
from bastion.emulators.kubernetes.client import Address, ApiClient
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.kubelet.kubelet import Kubelet
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.markers import MARKER
from tests.support.kubernetes_jobs import JOB_SETS, job_set
from tests.support.waiting import until

Obj = dict[str, Any]
ROOTS = ("/apis/jobset.x-k8s.io/v1alpha2/jobsets", "/apis/batch/v1/jobs", "/api/v1/pods")


@pytest.fixture
def client(tmp_path: Path, address: Address) -> Iterator[ApiClient]:
    """A client of a server with a node pool, all controllers and the kubelet."""
    client = ApiClient.connect(address)
    kubelet = Kubelet(client, KubeletSettings(state_dir=tmp_path, close_grace_seconds=0.0))
    kubelet.open()
    controllers = Controllers(client, [Pool.parse("v5litepod-8=1")])
    controllers.open()
    yield client
    until(lambda: not left(client))
    controllers.close()
    kubelet.close()
    client.close()


def left(client: ApiClient) -> list[str]:
    return [each["metadata"]["name"] for root in ROOTS for each in client.list(root)["items"]]


def submit(client: ApiClient, script: str) -> None:
    wanted = job_set()
    [container] = wanted["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    container["command"] = ["/bin/bash", "-c", script.replace("$", "$$")]
    client.create(JOB_SETS, wanted)


def condition(client: ApiClient) -> str:
    conditions = (client.get(f"{JOB_SETS}/b-one-1").get("status") or {}).get("conditions") or ()
    return next((each["type"] for each in conditions if each["status"] == "True"), "")


def test_a_gang_completes(client: ApiClient, tmp_path: Path) -> None:
    submit(client, "echo $TPU_WORKER_ID")
    until(lambda: condition(client) == "Completed")
    assert sorted(path.read_text() for path in tmp_path.glob("logs/*/host.log")) == ["0\n", "1\n"]
    client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")


def test_a_host_that_fails_ends_the_gang(client: ApiClient) -> None:
    submit(client, "trap 'exit 0' TERM; [ $TPU_WORKER_ID = 1 ] && exit 3; while :; do sleep 0.02; done")
    until(lambda: condition(client) == "Failed")
    client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")


def test_a_deleted_gang_leaves_no_process_and_no_object(client: ApiClient, tmp_path: Path) -> None:
    submit(client, "trap 'exit 0' TERM; touch up; while :; do sleep 0.02; done")
    until(lambda: len(list(tmp_path.glob("pods/*/home/up"))) == 2)
    uids = [pod["metadata"]["uid"] for pod in client.list("/api/v1/pods")["items"]]
    client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")
    until(lambda: not left(client))
    assert [uid for uid in uids if processes.marked(MARKER, uid)] == []
