"""Random faults of an emulated cluster that are certain: what its clients then see."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.emulators.kubernetes.address import locate
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


def submitted(client: ApiClient, *, spot: bool = False) -> None:
    wanted = job_set("b-one-1")
    pod = wanted["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    if spot:
        pod["nodeSelector"]["cloud.google.com/gke-spot"] = "true"
        pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Exists"})
    client.create(JOB_SETS, wanted)


def pods(client: ApiClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.list("/api/v1/pods")["items"]
    return found


def words(pod: dict[str, Any]) -> str:
    return str(pod.get("status"))


def test_a_machine_is_reclaimed_with_notice(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1:spot", preempt=1.0) as client:
        submitted(client, spot=True)
        until(lambda: any("imminent node shutdown" in words(pod) for pod in pods(client)), 30)
        until(lambda: len(client.list("/api/v1/nodes")["items"]) < 2, 30)


def test_a_machine_falls_silent_and_is_removed(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", node_lost=1.0) as client:
        lost = client.list("/api/v1/nodes")["items"][0]["metadata"]["uid"]
        submitted(client)
        until(lambda: lost not in [node["metadata"]["uid"] for node in client.list("/api/v1/nodes")["items"]], 30)


def test_a_pod_runs_out_of_memory_and_its_gang_fails(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", out_of_memory=1.0) as client:
        submitted(client)
        until(lambda: any("OOMKilled" in words(pod) for pod in pods(client)), 30)


def test_without_capacity_no_pod_is_placed_until_the_period_ends(tmp_path: Path) -> None:
    with cluster(tmp_path, "v5litepod-8=1", no_capacity=1.0) as client:
        until(lambda: all(node["spec"].get("unschedulable") for node in client.list("/api/v1/nodes")["items"]), 30)
        submitted(client)
        until(lambda: any("unschedulable" in words(pod) for pod in pods(client)), 30)


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


def code_of_a_list(client: ApiClient) -> int:
    try:
        client.list("/api/v1/nodes")
    except ApiError as error:
        return error.code
    return 200


def everything(client: ApiClient) -> list[dict[str, Any]]:
    return [*pods(client), *client.list("/api/v1/events")["items"], *client.list("/apis/batch/v1/jobs")["items"]]


def test_the_program_has_options_for_them_and_refuses_unknown_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bastion.cli.main", "emulator", "kubernetes", f"--state_dir={tmp_path / 'state'}"]
    refused = subprocess.run([*command, "--fault=x:1"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "KIND one of preempt, node-lost" in refused.stderr
    program = subprocess.Popen([*command, "--fault=unavailable:1", "--fault_seed=3"], stderr=subprocess.DEVNULL)
    try:
        until(lambda: locate(tmp_path / "state") or program.poll() is not None, 30)
        found = locate(tmp_path / "state")
        assert found is not None
        client = ApiClient.connect(found)
        until(lambda: code_of_a_list(client) == 503, 30)  # faults begin when all parts are up
        client.close()
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(60)
