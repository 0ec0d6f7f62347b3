"""Instance types: `tpu-v4-32` in hosts, chips, JAX devices and units of quota.

`accelerators.csv` lists every type of the Cloud TPU API (v2 to v6e), TPU7x, which only Kubernetes offers, and GPUs, so
that a refusal can name them. A resource type is the prefix of the type's name; the unit is the number in it:
TensorCores for v2-v4, v5p and TPU7x, chips for v5litepod and v6e.
"""

from __future__ import annotations

import csv
import difflib
import functools
import importlib.resources
from dataclasses import dataclass

from bastion.core.errors import UnknownInstanceType

# Prefixes that users put before a resource type; removed in this order.
_PREFIXES = ("tpu-", "gpu-", "nvidia-")
# Resource types whose slices Bastion makes on Kubernetes.
_ON_KUBERNETES = frozenset({"v4", "v5litepod", "v5p", "v6e", "tpu7x"})
# Names of resource types in other tools and documents.
_ALIASES = {
    "v5e": "v5litepod",
    "v5lite": "v5litepod",
    "7x": "tpu7x",
    "v7x": "tpu7x",
    "v7": "tpu7x",
    "a100": "a100-40gb",
    "h100": "h100-80gb",
    "h100-mega": "h100-mega-80gb",
    "h200": "h200-141gb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """One row of the table."""

    accelerator_type: str  # in the Cloud TPU API's spelling, `v4-32`
    resource_type: str  # the quota file's name, `v4`
    amount: int  # units of quota of one slice, 32
    chips: int
    chips_per_host: int
    hosts: int  # VMs of one slice
    devices_per_host: int  # JAX devices per VM
    topology: str
    runtime_version: str  # software image that Cloud TPU boots
    zones: tuple[str, ...]  # where it was offered when the table was made; empty if unknown
    on_cloud_tpu: bool  # whether the Cloud TPU API offers it
    # Value of the node label `cloud.google.com/gke-tpu-accelerator`, and the machine type; empty: not on Kubernetes.
    gke_accelerator: str
    gke_machine_type: str

    @property
    def name(self) -> str:
        prefix = "" if self.accelerator_type.startswith("tpu") or not self.served else "tpu-"
        return f"{prefix}{self.accelerator_type}"

    @property
    def on_kubernetes(self) -> bool:
        return bool(self.gke_accelerator)

    @property
    def served(self) -> bool:
        """Whether jobs can use it."""
        return self.on_cloud_tpu or self.on_kubernetes


@functools.cache
def table() -> dict[str, InstanceType]:
    """All known types by accelerator type, in the table's order."""
    text = importlib.resources.files("bastion.core.model").joinpath("accelerators.csv").read_text("utf-8")
    types: dict[str, InstanceType] = {}
    for row in csv.DictReader(text.splitlines()):
        chips_per_host = int(row["chips_per_host"])
        instance_type = InstanceType(
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
            gke_accelerator=row["gke_accelerator"] if row["family"] in _ON_KUBERNETES else "",
            gke_machine_type=row["gke_machine_type"],
        )
        # Some sizes have several topologies; the first row is the default.
        types.setdefault(instance_type.accelerator_type, instance_type)
    return types


def lookup(name: str) -> InstanceType:
    """Return the type with that name, such as `tpu-v4-32`; raises UnknownInstanceType with sizes or similar names."""
    known = table()
    instance_type = known.get(name.removeprefix("tpu-"))
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


@functools.cache
def served_types() -> tuple[str, ...]:
    return tuple(sorted({instance_type.resource_type for instance_type in table().values() if instance_type.served}))


@functools.cache
def cloud_tpu_types() -> tuple[str, ...]:
    """Resource types of the Cloud TPU API."""
    return tuple(sorted({each.resource_type for each in table().values() if each.on_cloud_tpu}))


@functools.cache
def kubernetes_types() -> tuple[str, ...]:
    """Resource types of slices on Kubernetes."""
    return tuple(sorted({each.resource_type for each in table().values() if each.on_kubernetes}))


def resource_type_of(text: str) -> str:
    """Return the resource type of a name as people write it (`tpu-v5e`, `v7x`, `h100`); empty if unknown."""
    word = text.lower()
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    word = _ALIASES.get(word, word)
    return word if any(instance_type.resource_type == word for instance_type in table().values()) else ""
