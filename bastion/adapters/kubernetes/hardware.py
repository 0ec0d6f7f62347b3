"""Which nodes a gang's pods need, and how much of them, by provider and capacity model.

Labels and taints: https://cloud.google.com/kubernetes-engine/docs/concepts/tpus and .../spot-vms; memory of machines:
.../docs/concepts/plan-tpus. The flex-start label was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bastion.core.errors import ProvisionerRefused
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import CapacityModel, GangRequest
from bastion.core.model.instance_types import InstanceType

TPU = "google.com/tpu"
_SPOT = "cloud.google.com/gke-spot"
# GiB; a machine that is not here gets no request for memory.
_MACHINE_MEMORY = {
    "ct4p-hightpu-4t": 407,
    "ct5lp-hightpu-4t": 192,
    "ct5p-hightpu-4t": 448,
    "ct6e-standard-4t": 720,
    "tpu7x-standard-4t": 960,
}
_REQUESTED_MEMORY = 0.8  # the rest is the node's own


@dataclass(slots=True, kw_only=True)
class Needs:
    """Parts of a pod's spec."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, str]] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    exclusive_topology: str = ""  # node label; each slice gets a value of its own

    @property
    def resources(self) -> dict[str, Any]:
        return {"requests": self.requests, "limits": self.limits}


def needs(request: GangRequest, cluster: ClusterSettings) -> Needs:
    """Raises ProvisionerRefused for a type or a capacity model that the cluster cannot have."""
    instance_type = _instance_type(request, cluster)
    found = Needs(
        node_selector={
            "cloud.google.com/gke-tpu-accelerator": instance_type.gke_accelerator,
            "cloud.google.com/gke-tpu-topology": instance_type.topology,
        },
        tolerations=[{"key": TPU, "operator": "Exists", "effect": "NoSchedule"}],
    )
    chips = str(instance_type.chips_per_host)
    found.requests[TPU] = found.limits[TPU] = chips
    if instance_type.hosts > 1:
        # A node pool is one slice; pods of several slices must not share it.
        found.exclusive_topology = "cloud.google.com/gke-nodepool"
    memory = _MACHINE_MEMORY.get(instance_type.gke_machine_type)
    if memory is not None and cluster.provider == "gke":
        found.requests["memory"] = f"{int(memory * _REQUESTED_MEMORY)}Gi"
        found.limits["memory"] = f"{memory}Gi"
    _capacity(found, request)
    _settings(found, request)
    return found


def _instance_type(request: GangRequest, cluster: ClusterSettings) -> InstanceType:
    found = instance_types.table().get(request.accelerator_type)
    if found is None:
        raise ProvisionerRefused(
            f"{request.accelerator_type} is not an instance type; `bastion instance-types` has all"
        )
    if not found.on_kubernetes or cluster.provider == "eks":
        where = "EKS" if cluster.provider == "eks" else "Kubernetes"
        raise ProvisionerRefused(
            f"{where} has no {found.resource_type}; remove k8s:{cluster.name} from its zones in config/daemon.toml"
        )
    return found


def _capacity(found: Needs, request: GangRequest) -> None:
    match request.place.model:
        case CapacityModel.SPOT:
            found.node_selector[_SPOT] = "true"
            found.tolerations.append({"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
        case CapacityModel.RESERVED:
            found.node_selector["cloud.google.com/reservation-name"] = request.place.reservation
        case CapacityModel.FLEX_START:
            found.node_selector["cloud.google.com/gke-flex-start"] = "true"
        case CapacityModel.ON_DEMAND:
            pass


def _settings(found: Needs, request: GangRequest) -> None:
    """Apply the operator's settings, which win."""
    pod = request.place.pod
    if pod is None:
        return
    if pod.cpu:
        found.requests["cpu"] = pod.cpu
    if pod.memory:
        found.requests["memory"] = pod.memory
        found.limits.pop("memory", None)
    for name, amount in pod.resources.items():
        # Kubernetes requires equal requests and limits of extended resources and huge pages.
        found.requests[name] = found.limits[name] = amount
    found.node_selector |= pod.node_selector
    for each in pod.tolerations:
        given = {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}
        found.tolerations.append({name: value for name, value in given.items() if value})
