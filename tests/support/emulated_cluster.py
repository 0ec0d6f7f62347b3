"""An emulated Kubernetes cluster with its pods, and ways to take its machines away."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.core.model.clusters import ClusterSettings
from bastion.emulators.kubernetes.client import ApiClient, Obj
from bastion.emulators.kubernetes.controllers import node_faults
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.emulator import Emulator
from bastion.emulators.kubernetes.settings import EmulatorSettings

NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class EmulatedCluster:
    emulator: Emulator
    client: ApiClient
    settings: ClusterSettings

    def pods(self, *, job: str = "") -> list[Obj]:
        selector = {"labelSelector": f"batch.kubernetes.io/job-name={job}"} if job else {}
        found: list[Obj] = self.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods", **selector)["items"]
        return found

    def everything(self) -> list[str]:
        """Names of all JobSets, Jobs, pods and services that gangs consist of."""
        kinds = {
            "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
            "jobs": "/apis/batch/v1",
            "pods": "/api/v1",
            "services": "/api/v1",
        }
        return [
            f"{kind}/{item['metadata']['name']}"
            for kind, group in kinds.items()
            for item in self.client.list(f"{group}/namespaces/{NAMESPACE}/{kind}")["items"]
        ]

    def cordon(self) -> None:
        self._set_unschedulable(True)

    def uncordon(self) -> None:
        self._set_unschedulable(False)

    def preempt(self, job: str, *, grace_seconds: int = 1) -> None:
        """Take the machine of that Job's first pod away, as GKE does with spot machines."""
        node = self.pods(job=job)[0]["spec"]["nodeName"]
        node_faults.preempt_node(self.client, node, now=_now(), grace_seconds=grace_seconds)

    def lose(self, job: str) -> None:
        node_faults.lose_node(self.client, self.pods(job=job)[0]["spec"]["nodeName"], now=_now())

    def _set_unschedulable(self, unschedulable: bool) -> None:
        for node in self.client.list("/api/v1/nodes")["items"]:
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            self.client.patch(path, {"spec": {"unschedulable": unschedulable}})


@contextlib.contextmanager
def emulated_cluster(folder: Path, *pools: str, name: str = "test") -> Iterator[EmulatedCluster]:
    """A cluster with node pools such as `v5litepod-16=2`."""
    settings = EmulatorSettings(
        state_dir=folder,
        pools=tuple(map(Pool.parse, pools)),
        repair_seconds=0.5,
        close_grace_seconds=0.2,
        image_backoff_seconds=0.2,
    )
    emulator = Emulator(settings)
    address = emulator.open()
    try:
        client = ApiClient.connect(address)
        try:
            uid = client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
            cluster = ClusterSettings(name=name, kubeconfig=str(folder / "kubeconfig"), uid=uid)
            yield EmulatedCluster(emulator, client, cluster)
        finally:
            client.close()
    finally:
        emulator.close()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
