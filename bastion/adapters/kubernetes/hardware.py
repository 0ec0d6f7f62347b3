"""Which nodes a gang's pods need, and how much of them, by provider and capacity model.

Labels and taints: https://cloud.google.com/kubernetes-engine/docs/concepts/tpus, .../gpus and .../spot-vms;
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html; Karpenter's page of its labels. The label of
flex-start was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bastion.adapters.kubernetes import terms
from bastion.core.errors import ProvisionerRefused
from bastion.core.model import instance_types
from bastion.core.model.clusters import PROVIDER_NAMES, ClusterSettings
from bastion.core.model.gangs import CapacityModel, GangRequest, Place
from bastion.core.model.gpu_networks import NO_NETWORK, GpuNetwork, networks
from bastion.core.model.instance_types import InstanceType

TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"
_MACHINE = "node.kubernetes.io/instance-type"
_SPOT = "cloud.google.com/gke-spot"
_REQUESTED_MEMORY = 0.8  # the rest is the node's own


@dataclass(slots=True, kw_only=True)
class Needs:
    """Parts of a pod's spec."""

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, str]] = field(default_factory=list)
    requests: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    exclusive_topology: str = ""  # node label; each slice gets a value of its own
    network: GpuNetwork = NO_NETWORK  # its resources are among the limits already

    @property
    def resources(self) -> dict[str, Any]:
        return {"requests": self.requests, "limits": self.limits}


def needs(request: GangRequest, cluster: ClusterSettings) -> Needs:
    """Raises ProvisionerRefused for a type or a capacity model that the cluster cannot have."""
    instance_type = _instance_type(request, cluster)
    found = _gpus(instance_type, cluster) if instance_type.kind == "gpu" else _tpus(instance_type)
    _capacity(found, request, cluster)
    _settings(found, request)
    machine = _machine(found, instance_type, cluster)
    _memory(found, machine, request)
    if instance_type.kind == "gpu" and request.ref.num_slices > 1:
        _network(found, machine, request)
    return found


def _tpus(instance_type: InstanceType) -> Needs:
    chips = str(instance_type.chips_per_host)
    return Needs(
        node_selector={
            "cloud.google.com/gke-tpu-accelerator": instance_type.gke_accelerator,
            "cloud.google.com/gke-tpu-topology": instance_type.topology,
        },
        tolerations=[{"key": TPU, "operator": "Exists", "effect": "NoSchedule"}],
        requests={TPU: chips},
        limits={TPU: chips},
        # A node pool is one slice; pods of several slices must not share it.
        exclusive_topology="cloud.google.com/gke-nodepool" if instance_type.hosts > 1 else "",
    )


def _gpus(instance_type: InstanceType, cluster: ClusterSettings) -> Needs:
    selector = {
        "gke": {"cloud.google.com/gke-accelerator": instance_type.gke_accelerator},
        "eks": {_MACHINE: instance_type.eks_instance_type},
        "generic": {"nvidia.com/gpu.product": instance_type.gpu_product},
    }
    gpus = str(instance_type.chips_per_host)
    return Needs(
        node_selector=selector[cluster.provider],
        tolerations=[{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        requests={GPU: gpus},
        limits={GPU: gpus},
    )


def _machine(found: Needs, instance_type: InstanceType, cluster: ClusterSettings) -> str:
    """The machine type of its nodes; empty if unknown. Operators may select another one with as many GPUs."""
    if cluster.provider == "generic":
        return ""
    return found.node_selector.get(_MACHINE) or instance_type.gke_machine_type


def _memory(found: Needs, machine: str, request: GangRequest) -> None:
    machine_type = instance_types.machine_types().get(machine)
    pod = request.place.pod
    if machine_type is None or (pod is not None and (pod.memory or pod.memory_limit)):
        return  # a limit below our request would be refused
    found.requests["memory"] = f"{int(machine_type.memory_gib * _REQUESTED_MEMORY)}Gi"
    found.limits["memory"] = f"{machine_type.memory_gib}Gi"


def _network(found: Needs, machine: str, request: GangRequest) -> None:
    """Take what the machine's network needs, unless the operator's settings say otherwise."""
    pod = request.place.pod
    network = networks().get(machine)
    if network is None or (pod is not None and not pod.gpu_network):
        return
    found.network = network
    for name, amount in network.resources.items():
        # Kubernetes requires equal requests and limits of extended resources and huge pages.
        found.requests[name] = found.limits[name] = found.limits.get(name, amount)


def _instance_type(request: GangRequest, cluster: ClusterSettings) -> InstanceType:
    found = instance_types.table().get(request.accelerator_type)
    if found is None:
        raise ProvisionerRefused(
            f"{request.accelerator_type} is not an instance type; `bastion instance-types` has all"
        )
    if cluster.provider not in found.providers:
        raise ProvisionerRefused(
            f"{PROVIDER_NAMES[cluster.provider]} has no {found.name}; remove k8s:{cluster.name} from the zones of "
            f"{found.resource_type} in config/daemon.toml"
        )
    return found


def _capacity(found: Needs, request: GangRequest, cluster: ClusterSettings) -> None:
    place = request.place
    if place.queue:
        # Kueue chooses among the tiers' flavors, and adds their selectors and tolerations.
        resource_type = instance_types.table()[request.accelerator_type].resource_type
        own = {"key": terms.TAINT_RESOURCE_TYPE, "operator": "Equal", "value": resource_type, "effect": "NoSchedule"}
        found.tolerations.append(own)
        return
    if cluster.provider == "eks":
        _eks_capacity(found, place)
        return
    match place.model:
        case CapacityModel.SPOT:
            found.node_selector[_SPOT] = "true"
            found.tolerations.append({"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
        case CapacityModel.RESERVED:
            found.node_selector["cloud.google.com/reservation-name"] = place.reservation
        case CapacityModel.FLEX_START:
            found.node_selector["cloud.google.com/gke-flex-start"] = "true"
        case CapacityModel.ON_DEMAND:
            pass


def _eks_capacity(found: Needs, place: Place) -> None:
    match place.model:
        case CapacityModel.SPOT:
            found.node_selector["eks.amazonaws.com/capacityType"] = "SPOT"
        case CapacityModel.RESERVED:
            found.node_selector["karpenter.k8s.aws/capacity-reservation-id"] = place.reservation
        case CapacityModel.FLEX_START:
            raise ProvisionerRefused('EKS has no flex-start; give the tier another model, such as "reserved"')
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
    if pod.cpu_limit:
        found.limits["cpu"] = pod.cpu_limit
    if pod.memory_limit:
        found.limits["memory"] = pod.memory_limit
    for name, amount in pod.resources.items():
        # Kubernetes requires equal requests and limits of extended resources and huge pages.
        found.requests[name] = found.limits[name] = amount
    found.node_selector |= pod.node_selector
    for each in pod.tolerations:
        given = {"key": each.key, "operator": each.operator, "value": each.value, "effect": each.effect}
        found.tolerations.append({name: value for name, value in given.items() if value})
