"""Node objects of emulated TPU node pools, as GKE labels and taints them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.core.model.instance_types import InstanceType
from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.objects import timestamp

NODE_POOL = "cloud.google.com/gke-nodepool"
# Which of its pool's machines a node is: a machine that comes back has a new name.
SLOT = "emulator.bastion/slot"
TPU = "google.com/tpu"

_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5litepod": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
# vCPUs and GiB of the machine types with that many chips (Google Cloud's page of TPU machine types).
_MACHINES = {
    ("v4", 4): ("ct4p-hightpu-4t", 240, 407),
    ("v5litepod", 1): ("ct5lp-hightpu-1t", 24, 48),
    ("v5litepod", 4): ("ct5lp-hightpu-4t", 112, 192),
    ("v5litepod", 8): ("ct5lp-hightpu-8t", 224, 384),
    ("v5p", 4): ("ct5p-hightpu-4t", 208, 448),
    ("v6e", 1): ("ct6e-standard-1t", 44, 176),
    ("v6e", 4): ("ct6e-standard-4t", 180, 720),
    ("v6e", 8): ("ct6e-standard-8t", 180, 1440),
    ("tpu7x", 1): ("tpu7x-standard-1t", 56, 240),
    ("tpu7x", 4): ("tpu7x-standard-4t", 224, 960),
}
# What a node keeps for itself, roughly.
_ALLOCATABLE_PERCENT = 95
_PODS = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`count` node pools of one slice each."""

    instance_type: InstanceType
    count: int
    spot: bool = False

    @classmethod
    def parse(cls, text: str) -> Pool:
        """`v5litepod-16=2` or `v5litepod-16=2:spot`. Raises Refused."""
        name, _, rest = text.partition("=")
        count, _, tier = rest.partition(":")
        found = instance_types.table().get(name.removeprefix("tpu-"))
        if found is None or found.resource_type not in _ACCELERATORS:
            raise Refused(
                f"{text!r} is not a valid node pool: {name!r} is not a type that GKE offers; "
                f"use a type of {', '.join(_ACCELERATORS)}, such as v5litepod-16=2"
            )
        if not count.isdigit() or int(count) < 1 or tier not in ("", "spot"):
            raise Refused(f"{text!r} is not a valid node pool; write TYPE=COUNT or TYPE=COUNT:spot, v5litepod-16=2")
        return cls(instance_type=found, count=int(count), spot=tier == "spot")

    @property
    def names(self) -> list[str]:
        """The names of its node pools."""
        tier = "-spot" if self.spot else ""
        return [f"{self.instance_type.accelerator_type}{tier}-{number}" for number in range(self.count)]


def build_node(pool: Pool, name: str, machine: int, suffix: str, *, now: datetime.datetime) -> Obj:
    """The node of one machine of the node pool `name`. `suffix` makes its name unique."""
    found = pool.instance_type
    machine_type, cpus, memory = _MACHINES.get(
        (found.resource_type, found.chips_per_host), (f"emulated-{found.chips_per_host}t", 100, 200)
    )
    node_name = f"gke-emulated-{name}-{machine}-{suffix}"
    labels = {
        "kubernetes.io/hostname": node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": machine_type,
        NODE_POOL: name,
        SLOT: f"{name}-{machine}",
        "cloud.google.com/gke-tpu-accelerator": _ACCELERATORS[found.resource_type],
        "cloud.google.com/gke-tpu-topology": found.topology,
        "cloud.google.com/gke-accelerator-count": str(found.chips_per_host),
    }
    # GKE taints TPU nodes; it does not taint spot nodes of pools that people make, but theirs mostly are.
    taints = [{"key": TPU, "value": "present", "effect": "NoSchedule"}]
    if pool.spot:
        labels["cloud.google.com/gke-spot"] = "true"
        taints.append({"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "capacity": _resources(cpus, memory, found.chips_per_host, percent=100),
            "allocatable": _resources(cpus, memory, found.chips_per_host, percent=_ALLOCATABLE_PERCENT),
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


def _resources(cpus: int, memory_gib: int, chips: int, *, percent: int) -> dict[str, str]:
    return {
        "cpu": f"{cpus * 10 * percent}m",
        "memory": f"{memory_gib * 1024 * percent // 100}Mi",
        "ephemeral-storage": "90Gi",
        "pods": str(_PODS),
        TPU: str(chips),
    }
