"""An emulated Kubernetes cluster with its pods, and ways to take its machines away."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion.client.quota.kueue_export import export
from bastion.core.model.clusters import ClusterSettings, place_of
from bastion.core.model.provisioning import Provisioning, ResourceTypeSettings
from bastion.emulators import state_folder
from bastion.emulators.kubernetes.address import ADDRESS_FILE, KUBECONFIG_FILE
from bastion.emulators.kubernetes.apiserver.server import ApiServer
from bastion.emulators.kubernetes.client import Address, ApiClient, Obj
from bastion.emulators.kubernetes.controllers import node_faults
from bastion.emulators.kubernetes.controllers.api_objects import KINDS, is_true
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.emulator import Emulator
from bastion.emulators.kubernetes.kubelet.kubelet import Kubelet
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.kubernetes.settings import EmulatorSettings
from quota import Policy
from tests.kube.real_server import RealServer
from tests.support.waiting import until

NAMESPACE = "default"
QUEUE = "bastion-{project}"


@dataclass(frozen=True, slots=True)
class EmulatedCluster:
    client: ApiClient
    settings: ClusterSettings
    server: ApiServer | None = None  # for its faults; None if it is a real one

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
def emulated_cluster(
    folder: Path, *pools: str, name: str = "test", policy: Policy | None = None
) -> Iterator[EmulatedCluster]:
    """A cluster with node pools such as `v5litepod-16=2`; `policy`: with Kueue, which decides by that quota."""
    settings = EmulatorSettings(
        state_dir=folder,
        pools=tuple(map(Pool.parse, pools)),
        repair_seconds=0.5,
        close_grace_seconds=0.2,
        image_backoff_seconds=0.2,
        kueue=policy is not None,
    )
    emulator = Emulator(settings)
    address = emulator.open()
    try:
        with _client(address) as client:
            _await_nodes(client, settings.pools)
            kubeconfig = str(folder / KUBECONFIG_FILE)
            queue = QUEUE if policy is not None else ""
            found = ClusterSettings(name=name, kubeconfig=kubeconfig, uid=uid_of(client), queue=queue)
            if policy is not None:
                decide_by(policy, client, found)
            yield EmulatedCluster(client, found, emulator.server)
    finally:
        emulator.close()


def decide_by(policy: Policy, client: ApiClient, cluster: ClusterSettings) -> None:
    """Create what the quota file is exported as, and wait until Kueue uses it."""
    nodes = {each: ResourceTypeSettings(zones=(place_of(cluster.name),)) for each in policy.resource_types}
    settings = Provisioning(clusters={cluster.name: cluster}, resource_types=nodes)
    exported = export(policy, settings, cluster=cluster.name, label="test", name="test")
    for each in exported.objects:
        client.create(KINDS[each["apiVersion"], each["kind"]].path(NAMESPACE), each)
    queues = KINDS["kueue.x-k8s.io/v1beta2", "ClusterQueue"].path("")
    until(lambda: all(is_true(each, "Active") for each in client.list(queues)["items"]))


@contextlib.contextmanager
def cluster_on_real_server(folder: Path, *pools: str, name: str = "test") -> Iterator[EmulatedCluster]:
    """The same controllers and pods as clients of the real API server that `make kube` builds."""
    with contextlib.ExitStack() as parts:
        server = parts.enter_context(RealServer())
        folder.mkdir(mode=0o700)
        facts = {"server": server.server, "token": server.token, "ca_file": server.ca_file}
        state_folder.publish(folder / ADDRESS_FILE, facts, state_folder.this_process())
        client = parts.enter_context(_client(server))
        kubelet = Kubelet(client, KubeletSettings(state_dir=folder, close_grace_seconds=0.2, image_backoff_seconds=0.2))
        kubelet.open()
        parts.callback(kubelet.close)
        wanted = tuple(map(Pool.parse, pools))
        controllers = Controllers(client, wanted, repair_seconds=0.5)
        controllers.open()
        parts.callback(controllers.close)
        _await_nodes(client, wanted)
        token_file = folder / "token"
        token_file.write_text(server.token)
        settings = ClusterSettings(
            name=name, server=server.server, token_file=str(token_file), ca_file=server.ca_file, uid=uid_of(client)
        )
        yield EmulatedCluster(client, settings)


@contextlib.contextmanager
def _client(address: Address) -> Iterator[ApiClient]:
    client = ApiClient.connect(address)
    try:
        yield client
    finally:
        client.close()


def _await_nodes(client: ApiClient, pools: Sequence[Pool]) -> None:
    nodes = sum(pool.count * pool.instance_type.hosts for pool in pools)
    until(lambda: len(client.list("/api/v1/nodes")["items"]) == nodes)


def uid_of(client: ApiClient) -> str:
    return str(client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
