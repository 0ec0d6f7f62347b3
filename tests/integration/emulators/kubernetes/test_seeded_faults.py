"""Random faults of an emulated cluster that are certain: what its clients then see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.emulators.kubernetes.client import ApiClient, ApiError
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.emulator import Emulator
from bastion.emulators.kubernetes.fault_plan import FaultPlan
from bastion.emulators.kubernetes.faults import Faults
from bastion.emulators.kubernetes.settings import EmulatorSettings
from tests.support.kubernetes_jobs import JOB_SETS, job_set
from tests.support.waiting import until

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@contextlib.contextmanager
def cluster(folder: Path, pool: str, **rates: float) -> Iterator[ApiClient]:
    plan = FaultPlan(rates={name.replace("_", "-"): rate for name, rate in rates.items()}, seconds=0.2)
    emulator = Emulator(
        EmulatorSettings(
            state_dir=folder,
            pools=(Pool.parse(pool),),
            close_grace_seconds=0.2,
            repair_seconds=60.0,
            notice_seconds=1,
            plan=plan,
        )
    )
    client = ApiClient.connect(emulator.open())
    try:
        yield client
    finally:
        client.close()
        emulator.close()


def submitted(client: ApiClient, name: str = "b-one-1", *, spot: bool = False) -> None:
    wanted = job_set(name)
    pod = wanted["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    if spot:
        pod["nodeSelector"]["cloud.google.com/gke-spot"] = "true"
        pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Exists"})
    client.create(JOB_SETS, wanted)


def pods(client: ApiClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.list("/api/v1/pods")["items"]
    return found


def _of(pod: dict[str, Any], job_set: str) -> bool:
    return str(pod["metadata"]["name"]).startswith(job_set)


def words(pod: dict[str, Any]) -> str:
    return str(pod.get("status"))


def test_a_machine_is_reclaimed_with_notice(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1:spot", preempt=1.0) as client:
        submitted(client, spot=True)
        until(lambda: any("imminent node shutdown" in words(pod) for pod in pods(client)), 30)
        until(lambda: len(client.list("/api/v1/nodes")["items"]) < 2, 30)


def test_a_machine_falls_silent_and_is_removed(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", node_lost=1.0) as client:
        until(lambda: client.list("/api/v1/nodes")["items"], 30)
        lost = client.list("/api/v1/nodes")["items"][0]["metadata"]["uid"]
        submitted(client)
        until(lambda: lost not in [node["metadata"]["uid"] for node in client.list("/api/v1/nodes")["items"]], 30)


def test_a_pod_runs_out_of_memory_and_its_gang_fails(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", out_of_memory=1.0) as client:
        submitted(client)
        until(lambda: any("OOMKilled" in words(pod) for pod in pods(client)), 30)


def test_without_capacity_no_pod_is_placed(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", no_capacity=1.0) as client:
        # The scheduler sees nodes later than we do. A pod that fits no node shows when it has.
        submitted(client, "b-never-1", spot=True)
        until(lambda: any("unschedulable" in words(pod) for pod in pods(client)), 30)
        submitted(client)
        until(lambda: any("unschedulable" in words(pod) for pod in pods(client) if _of(pod, "b-one-1")), 30)


def test_requests_and_watches_are_hit_by_files(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1") as client:
        Faults(tmp_path).refuse("PUT", 429)
        with pytest.raises(ApiError) as refused:
            client.update(f"{CONFIG_MAPS}/x", {"metadata": {"name": "x"}})
        assert refused.value.code == 429
        version = client.list(CONFIG_MAPS)["metadata"]["resourceVersion"]
        client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}})
        watch = client.watch(
            "/api/v1/nodes", resource_version=client.list("/api/v1/nodes")["metadata"]["resourceVersion"]
        )
        Faults(tmp_path).expire()
        assert all(event["type"] != "ERROR" for event in watch), "a cut, not an end"
        [expired] = client.watch(CONFIG_MAPS, resource_version=version)
        assert (expired["type"], expired["object"]["code"]) == ("ERROR", 410)
