"""Node objects of emulated node pools, as GKE or EKS label and taint them.

GPU nodes also have the label of NVIDIA's GPU feature discovery, which a generic cluster has instead.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.core.model.clusters import PROVIDER_NAMES, Provider
from bastion.core.model.gpu_networks import networks
from bastion.core.model.instance_types import InstanceType, MachineType
from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import timestamp

NODE_POOL = "cloud.google.com/gke-nodepool"
# Which of its pool's machines a node is: a machine that comes back has a new name.
SLOT = "emulator.bastion/slot"
TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"

# What a node keeps for itself, roughly.
_ALLOCATABLE_PERCENT = 95
_PODS = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`count` node pools of one slice each."""

    instance_type: InstanceType
    count: int
    spot: bool = False
    provider: Provider = "gke"

    @classmethod
    def parse(cls, text: str) -> Pool:
        """`v5litepod-16=2`, `v5litepod-16=2:spot` or `gpu-h100-8=2:eks:spot`. Raises Refused."""
        name, _, rest = text.partition("=")
        count, *words = rest.split(":")
        found = instance_types.find(name)
        if found is None or not found.on_kubernetes:
            raise Refused(
                f"{text!r} is not a valid node pool: {name!r} is not a type that Kubernetes offers; "
                f"use a type of {', '.join(instance_types.kubernetes_types())}, such as v5litepod-16=2"
            )
        providers = [provider for provider in PROVIDER_NAMES if provider in words] or ["gke"]
        if not count.isdigit() or int(count) < 1 or set(words) - {"spot", *providers} or len(providers) > 1:
            raise Refused(
                f"{text!r} is not a valid node pool; write TYPE=COUNT, TYPE=COUNT:spot or TYPE=COUNT:eks, "
                "v5litepod-16=2"
            )
        if providers[0] not in found.providers:
            raise Refused(
                f"{text!r} is not a valid node pool: {PROVIDER_NAMES[providers[0]]} has no {found.name}; "
                f"use {' or '.join(found.providers)}"
            )
        return cls(instance_type=found, count=int(count), spot="spot" in words, provider=providers[0])

    @property
    def names(self) -> list[str]:
        """The names of its node pools."""
        kind = ("" if self.provider == "gke" else f"-{self.provider}") + ("-spot" if self.spot else "")
        return [f"{self.instance_type.accelerator_type}{kind}-{number}" for number in range(self.count)]


def build_node(pool: Pool, name: str, machine: int, suffix: str, *, now: datetime.datetime) -> Obj:
    """The node of one machine of the node pool `name`. `suffix` makes its name unique."""
    found = pool.instance_type
    name_of_machine = found.eks_instance_type if pool.provider == "eks" else found.gke_machine_type
    machine_type = instance_types.machine_types()[name_of_machine]
    node_name = f"{pool.provider}-emulated-{name}-{machine}-{suffix}"
    labels = {
        "kubernetes.io/hostname": node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": name_of_machine,
        NODE_POOL: name,
        SLOT: f"{name}-{machine}",
        **_accelerator_labels(pool),
    }
    extended = {TPU if found.kind == "tpu" else GPU: str(found.chips_per_host)}
    taints = []
    if found.kind == "tpu" or pool.provider == "gke":
        # GKE taints nodes with accelerators; EKS does not.
        taints.append({"key": next(iter(extended)), "value": "present", "effect": "NoSchedule"})
    if pool.provider == "eks":
        labels["eks.amazonaws.com/capacityType"] = "SPOT" if pool.spot else "ON_DEMAND"
        # As with the device plugin for EFA.
        extended |= networks()[name_of_machine].resources
    elif pool.spot:
        # GKE does not taint spot nodes of pools that people make, but theirs mostly are.
        labels["cloud.google.com/gke-spot"] = "true"
        taints.append({"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "capacity": _resources(machine_type, percent=100) | extended,
            "allocatable": _resources(machine_type, percent=_ALLOCATABLE_PERCENT) | extended,
            "conditions": [ready_condition("True", "KubeletReady", "kubelet is posting ready status", now)],
            "addresses": [{"type": "Hostname", "address": node_name}],
        },
    }


def ready_condition(status: str, reason: str, message: str, now: datetime.datetime) -> Obj:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": timestamp(now),
    }


def _accelerator_labels(pool: Pool) -> dict[str, str]:
    found = pool.instance_type
    if found.kind == "tpu":
        return {
            "cloud.google.com/gke-tpu-accelerator": found.gke_accelerator,
            "cloud.google.com/gke-tpu-topology": found.topology,
            "cloud.google.com/gke-accelerator-count": str(found.chips_per_host),
        }
    labels = {"nvidia.com/gpu.product": found.gpu_product} if found.gpu_product else {}
    if pool.provider == "gke":
        labels["cloud.google.com/gke-accelerator"] = found.gke_accelerator
    return labels


def _resources(machine: MachineType, *, percent: int) -> dict[str, str]:
    return {
        "cpu": f"{machine.cpus * 10 * percent}m",
        "memory": f"{machine.memory_gib * 1024 * percent // 100}Mi",
        "ephemeral-storage": "90Gi",
        "pods": str(_PODS),
    }
