"""Instance types: `tpu-v4-32` or `gpu-h100-8` in hosts, chips, JAX devices and units of quota.

`accelerators.csv` lists every type of the Cloud TPU API (v2 to v6e), and TPU7x and GPUs, which only Kubernetes offers.
A resource type is the middle of the type's name; the unit is the number at its end: TensorCores for v2-v4, v5p and
TPU7x, chips for v5litepod and v6e, GPUs of one host for GPUs. `machine_types.csv` has the machines behind them.

Machines: https://cloud.google.com/compute/docs/gpus and the pages of EC2's P4, P5 and P6 instances. Labels of GPUs:
`nvidia.com/gpu.product` of NVIDIA's GPU feature discovery.
"""

from __future__ import annotations

import csv
import difflib
import functools
import importlib.resources
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bastion.core.errors import UnknownInstanceType
from bastion.core.model.clusters import Provider

# Prefixes that users put before a resource type; removed in this order.
_PREFIXES = ("tpu-", "gpu-", "nvidia-")
# Names of resource types in other tools and documents.
_ALIASES = {
    "v5e": "v5litepod",
    "v5lite": "v5litepod",
    "7x": "tpu7x",
    "v7x": "tpu7x",
    "v7": "tpu7x",
    "a100-40gb": "a100",
    "tesla-a100": "a100",
    "h100-80gb": "h100",
    "h100-mega-80gb": "h100-mega",
    "h200-141gb": "h200",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A machine of Google Cloud or AWS."""

    cpus: int
    memory_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One row of the table."""

    kind: Literal["tpu", "gpu"]
    accelerator_type: str  # `v4-32`, `h100-8`: the name without its prefix; for TPUs the Cloud TPU API's spelling
    resource_type: str  # the quota file's name, `v4`
    amount: int  # units of quota of one slice, 32
    chips: int  # of GPUs: GPUs
    chips_per_host: int
    hosts: int  # VMs of one slice
    devices_per_host: int  # JAX devices per VM
    topology: str
    runtime_version: str  # software image that Cloud TPU boots
    zones: tuple[str, ...]  # where it was offered when the table was made; empty if unknown
    on_cloud_tpu: bool  # whether the Cloud TPU API offers it
    # Value of the node label `cloud.google.com/gke-tpu-accelerator`, of GPUs `cloud.google.com/gke-accelerator`, and
    # the machine type; empty: not on GKE.
    gke_accelerator: str
    gke_machine_type: str
    eks_instance_type: str  # empty: not on EKS
    gpu_product: str  # value of the node label `nvidia.com/gpu.product`; empty: on no other cluster

    @property
    def name(self) -> str:
        prefix = "" if self.accelerator_type.startswith("tpu") else f"{self.kind}-"
        return f"{prefix}{self.accelerator_type}"

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The kinds of clusters that have it."""
        found: list[Provider] = []
        if self.gke_accelerator:
            found.append("gke")
        if self.eks_instance_type:
            found.append("eks")
        if self.gpu_product or (self.kind == "tpu" and self.gke_accelerator):
            found.append("generic")
        return tuple(found)

    @property
    def on_kubernetes(self) -> bool:
        return bool(self.providers)

    @property
    def served(self) -> bool:
        """Whether jobs can use it."""
        return self.on_cloud_tpu or self.on_kubernetes


@functools.cache
def table() -> dict[str, InstanceType]:
    """All known types by accelerator type, in the table's order."""
    types: dict[str, InstanceType] = {}
    for row in _rows("accelerators.csv"):
        chips_per_host = int(row["chips_per_host"])
        instance_type = InstanceType(
            kind="gpu" if row["name_unit"] == "GPUs" else "tpu",
            accelerator_type=row["accelerator_type"],
            resource_type=row["family"],
            amount=int(row["name_count"]),
            chips=int(row["chips"]),
            chips_per_host=chips_per_host,
            hosts=int(row["hosts"]),
            devices_per_host=chips_per_host * int(row["jax_devices_per_chip"]),
            topology=row["topology"],
            runtime_version=row["runtime_version"],
            zones=tuple(row["zones"].split()),
            on_cloud_tpu=row["cloud_tpu_api"] == "yes",
            gke_accelerator=row["gke_accelerator"],
            gke_machine_type=row["gke_machine_type"],
            eks_instance_type=row["eks_instance_type"],
            gpu_product=row["gpu_product"],
        )
        # Some sizes have several topologies; the first row is the default.
        types.setdefault(instance_type.accelerator_type, instance_type)
    return types


@functools.cache
def machine_types() -> dict[str, MachineType]:
    """The machines of the table's types, and others that a pool may have instead, by name."""
    return {
        row["machine_type"]: MachineType(cpus=int(row["cpus"]), memory_gib=int(row["memory_gib"]))
        for row in _rows("machine_types.csv")
    }


def _rows(file: str) -> Iterable[dict[str, str]]:
    text = importlib.resources.files("bastion.core.model").joinpath(file).read_text("utf-8")
    return csv.DictReader(text.splitlines())


def find(name: str) -> InstanceType | None:
    """The type with that name, with or without its prefix; None: unknown."""
    return table().get(name.removeprefix("tpu-").removeprefix("gpu-"))


def lookup(name: str) -> InstanceType:
    """Return the type with that name, such as `tpu-v4-32`; raises UnknownInstanceType with sizes or similar names."""
    known = table()
    instance_type = find(name) or _of_machine(name)
    if instance_type is not None and instance_type.served and name == instance_type.name:
        return instance_type
    if instance_type is not None and instance_type.served:
        raise UnknownInstanceType(f"{name} is not an instance type; did you mean {instance_type.name}?")
    resource_type = resource_type_of(name.rpartition("-")[0]) or resource_type_of(name)
    sizes = sorted((t for t in known.values() if t.resource_type == resource_type), key=lambda t: t.amount)
    if sizes and not sizes[0].served:
        raise UnknownInstanceType(
            f"neither Cloud TPU nor Bastion on Kubernetes offers {name} ({resource_type}); "
            f"choose a type of {', '.join(served_types())}"
        )
    meant = known.get(f"{resource_type}-{name.rpartition('-')[2]}")
    if meant is not None:
        raise UnknownInstanceType(f"{name} is not an instance type; did you mean {meant.name}?")
    if sizes:
        raise UnknownInstanceType(f"{name} is not a valid size; {resource_type} has {', '.join(t.name for t in sizes)}")
    near = difflib.get_close_matches(name, [t.name for t in known.values() if t.served], n=3, cutoff=0.5)
    resource_types = sorted({f"{t.name.rpartition('-')[0]}-N" for t in known.values() if t.served})
    hint = f"did you mean {' or '.join(near)}?" if near else f"valid resource types: {', '.join(resource_types)}"
    raise UnknownInstanceType(f"{name} is not an instance type; {hint}")


def _of_machine(name: str) -> InstanceType | None:
    """The type of an EC2 machine, such as `p5.48xlarge`: people call GPUs so."""
    return next((each for each in table().values() if each.eks_instance_type == name != ""), None)


@functools.cache
def served_types() -> tuple[str, ...]:
    return tuple(sorted({instance_type.resource_type for instance_type in table().values() if instance_type.served}))


@functools.cache
def cloud_tpu_types() -> tuple[str, ...]:
    """Resource types of the Cloud TPU API."""
    return tuple(sorted({each.resource_type for each in table().values() if each.on_cloud_tpu}))


@functools.cache
def kubernetes_types(provider: Provider | None = None) -> tuple[str, ...]:
    """Resource types of slices on Kubernetes, or on one provider's clusters."""
    types = (each for each in table().values() if each.on_kubernetes)
    return tuple(sorted({each.resource_type for each in types if provider is None or provider in each.providers}))


def resource_type_of(text: str) -> str:
    """Return the resource type of a name as people write it (`tpu-v5e`, `v7x`, `h100`); empty if unknown."""
    word = text.lower()
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    word = _ALIASES.get(word, word)
    return word if any(instance_type.resource_type == word for instance_type in table().values()) else ""
