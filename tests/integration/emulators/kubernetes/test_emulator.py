"""The whole cluster: JobSets that run processes, through the API only, and restarts of the program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion import processes
from bastion.emulators.kubernetes.address import KubernetesAddress, locate
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.emulator import Emulator
from bastion.emulators.kubernetes.faults import Faults
from bastion.emulators.kubernetes.settings import EmulatorSettings
from bastion.emulators.markers import MARKER
from bastion.emulators.state_folder import EmulatorRunning
from tests.support.kubernetes_jobs import JOB_SETS, job_set
from tests.support.waiting import until

Obj = dict[str, Any]
JOBS, PODS, SERVICES = "/apis/batch/v1/jobs", "/api/v1/pods", "/api/v1/namespaces/default/services"


class Cluster:
    def __init__(self, folder: Path, address: KubernetesAddress) -> None:
        self.folder = folder
        self.client = ApiClient.connect(address)
        self.uids: set[str] = set()

    def submit(self, script: str, *, name: str = "b-one-1", **container: Any) -> None:
        wanted = job_set(name)
        [found] = wanted["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
        found |= {"command": ["/bin/bash", "-c", script.replace("$", "$$")], **container}
        self.client.create(JOB_SETS, wanted)

    def pods(self) -> list[Obj]:
        found: list[Obj] = self.client.list(PODS)["items"]
        self.uids |= {pod["metadata"]["uid"] for pod in found}
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def phases(self) -> list[str]:
        return [pod["status"].get("phase", "") for pod in self.pods()]

    def wait_running(self) -> None:
        """Wait until both pods run and have their handlers."""
        until(lambda: self.phases() == ["Running", "Running"])
        until(lambda: len(list(self.folder.glob("pods/*/home/up"))) == 2)

    def condition(self, name: str = "b-one-1") -> str:
        """The JobSet's final condition; empty before."""
        status = self.client.get(f"{JOB_SETS}/{name}").get("status") or {}
        true = [each["type"] for each in status.get("conditions") or () if each["status"] == "True"]
        return next((kind for kind in true if kind in ("Completed", "Failed")), "")

    def node(self, slot: str) -> str:
        """The name of the node that is this machine of a node pool; empty if there is none."""
        found = self.client.list("/api/v1/nodes", labelSelector=f"emulator.bastion/slot={slot}")["items"]
        return str(found[0]["metadata"]["name"]) if found else ""

    def reasons(self) -> set[str]:
        """The reasons of all pods' conditions."""
        return {each.get("reason", "") for pod in self.pods() for each in pod["status"].get("conditions") or ()}

    def left(self) -> list[str]:
        items = [each for path in (JOB_SETS, JOBS, PODS) for each in self.client.list(path)["items"]]
        services = [each for each in self.client.list(SERVICES)["items"] if each["metadata"]["name"] == "b-one-1"]
        return [each["metadata"]["name"] for each in (*items, *services)]

    def logs(self) -> dict[str, str]:
        """Output by Job and index, such as `b-one-1-slice-0-1`."""
        files = self.folder.glob("logs/*/host.log")
        return {path.parent.name.split("_")[1].rpartition("-")[0]: path.read_text() for path in files}


def settings(folder: Path) -> EmulatorSettings:
    pools = (Pool.parse("v5litepod-8=1"),)
    return EmulatorSettings(state_dir=folder, pools=pools, close_grace_seconds=0.0, repair_seconds=0.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    emulator = Emulator(settings(tmp_path))
    found = Cluster(tmp_path, emulator.open())
    yield found
    found.client.close()
    emulator.close()
    assert [uid for uid in found.uids if processes.marked(MARKER, uid)] == []
    assert locate(tmp_path) is None


def test_a_gang_completes_and_its_hosts_know_each_other(cluster: Cluster) -> None:
    index = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    env = [{"name": "WORKER", "valueFrom": index}, {"name": "ADDRESS", "valueFrom": address}]
    cluster.submit('echo "$WORKER $TPU_WORKER_ID $ADDRESS $TPU_WORKER_HOSTNAMES"', env=env)
    until(lambda: cluster.condition() == "Completed")
    assert cluster.phases() == ["Succeeded", "Succeeded"]
    first, second = (pod["status"]["podIP"] for pod in cluster.pods())
    assert cluster.logs() == {
        "b-one-1-slice-0-0": f"0 0 {first} {first},{second}\n",
        "b-one-1-slice-0-1": f"1 1 {second} {first},{second}\n",
    }


def test_foreground_deletion_lets_hosts_save_and_leaves_no_process_and_no_object(cluster: Cluster) -> None:
    cluster.submit("trap 'echo saved; exit 0' TERM; touch up; while :; do sleep 0.02; done")
    cluster.wait_running()
    cluster.client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")
    until(lambda: not cluster.left())
    assert cluster.logs() == {"b-one-1-slice-0-0": "saved\n", "b-one-1-slice-0-1": "saved\n"}
    assert [uid for uid in cluster.uids if processes.marked(MARKER, uid)] == []
    until(lambda: not list((cluster.folder / "pods").iterdir()))


def test_a_failed_host_fails_the_gang_and_ends_the_others(cluster: Cluster) -> None:
    index = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}
    script = "trap 'exit 0' TERM; touch up; [ $WORKER = 0 ] && exit 3; while :; do sleep 0.02; done"
    cluster.submit(script, env=[{"name": "WORKER", "valueFrom": index}])
    until(lambda: cluster.condition() == "Failed")
    until(lambda: all(processes.marked(MARKER, pod["metadata"]["uid"]) == [] for pod in cluster.pods()))


def test_a_machine_that_is_gone_takes_its_processes_and_fails_the_gang(cluster: Cluster) -> None:
    cluster.submit("trap '' TERM; touch up; while :; do sleep 0.02; done")
    cluster.wait_running()
    cluster.pods()
    Faults(cluster.folder).remove(cluster.node("v5litepod-8-0-0"))
    until(lambda: cluster.condition() == "Failed")
    assert "DisruptionTarget" in cluster.client.list(JOBS)["items"][0]["status"]["conditions"][0]["message"]
    until(lambda: [uid for uid in cluster.uids if processes.marked(MARKER, uid)] == [])


def test_a_gang_waits_for_a_pool_that_is_held(tmp_path: Path) -> None:
    Faults(tmp_path).hold("v5litepod-8-0")
    emulator = Emulator(settings(tmp_path))
    cluster = Cluster(tmp_path, emulator.open())
    try:
        cluster.submit("exit 0")
        until(lambda: "Unschedulable" in cluster.reasons())
        assert cluster.client.list("/api/v1/nodes")["items"] == []
        Faults(tmp_path).hold("v5litepod-8-0", held=False)
        until(lambda: cluster.condition() == "Completed")
    finally:
        cluster.client.close()
        emulator.close()


def test_pods_outlive_a_killed_emulator_and_a_second_one_goes_on(tmp_path: Path) -> None:
    arguments = [f"--state-dir={tmp_path}", "--pool=v5litepod-8=1", "--grace-seconds=0"]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "bastion.emulators.kubernetes", *arguments])

    def address() -> KubernetesAddress:
        until(lambda: locate(tmp_path) is not None)
        found = locate(tmp_path)
        assert found is not None
        return found

    program = start()
    try:
        first = Cluster(tmp_path, address())
        first.submit("touch up; until [ -e stop ]; do sleep 0.02; done")
        first.wait_running()
        with pytest.raises(EmulatorRunning):
            Emulator(settings(tmp_path)).open()
        program.kill()
        program.wait()
        for home in tmp_path.glob("pods/*/home"):
            assert processes.marked(MARKER, home.parent.name)
            (home / "stop").touch()
        program = start()
        again = Cluster(tmp_path, address())
        until(lambda: again.condition() == "Completed")
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=60) == 0
        assert locate(tmp_path) is None
    finally:
        program.kill()
        program.wait()
        for folder in tmp_path.glob("pods/*"):
            processes.end_marked(MARKER, folder.name, grace_seconds=0)


def test_nodes_of_pools_that_are_no_longer_wanted_go(tmp_path: Path) -> None:
    def pools(*wanted: str) -> set[str]:
        emulator = Emulator(EmulatorSettings(state_dir=tmp_path, pools=tuple(Pool.parse(text) for text in wanted)))
        client = ApiClient.connect(emulator.open())
        hosts = sum(Pool.parse(text).instance_type.hosts for text in wanted)
        try:
            until(lambda: len(client.list("/api/v1/nodes")["items"]) == hosts)
            nodes = client.list("/api/v1/nodes")["items"]
            return {node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] for node in nodes}
        finally:
            client.close()
            emulator.close()

    assert pools("v5p-8=1", "v5litepod-8=1:spot") == {"v5p-8-0", "v5litepod-8-spot-0"}
    assert pools("v5p-8=1") == {"v5p-8-0"}
