"""The examples of variables (`example.tfvars`) against the modules that take them and the tables of Bastion's types."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.terraform.configuration import Module, parse, unquoted

Row = Mapping[str, str]

# A label of GKE's nodes; the rows of v2 and v3, which are not used on GKE, have other texts.
_TPU = re.compile(r"tpu[a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Machines:
    """The tables in both roots' machines.tf and in the module of node pools."""

    tpu_accelerators: dict[str, str]
    gpu_types: dict[str, dict[str, str]]
    eks_types: dict[str, dict[str, str]]


def values(name: str, text: str) -> dict[str, Any]:
    """The variables that a file sets, without the quotes of strings. Raises NotHcl."""
    return {key: _plain(value) for key, value in parse(name, text).items() if not key.startswith("__")}


def machines(gke: Module, pools: Module, eks: Module) -> Machines:
    return Machines(
        tpu_accelerators=_plain(pools.local_values["tpu_accelerators"].body["value"]),
        gpu_types=_plain(gke.local_values["gpu_types"].body["value"]),
        eks_types=_plain(eks.local_values["instance_types"].body["value"]),
    )


def variables_set(name: str, given: Mapping[str, Any], root: Module) -> Iterator[str]:
    """The file sets variables that there are, and all without a default."""
    for key in sorted(given.keys() - root.variables.keys()):
        yield f"{name}: there is no variable {key}"
    for key, variable in root.variables.items():
        if "default" not in variable.body and key not in given:
            yield f"{name}: {key} is missing"


def tpu_pools(name: str, given: Mapping[str, Any], table: Mapping[str, Row], known: Machines) -> Iterator[str]:
    """Each pool has the hosts of its type, which are those of the topology on that machine."""
    for pool, body in given.get("tpu_pools", {}).items():
        row = table.get(body["type"])
        if row is None or not _TPU.fullmatch(row["gke_accelerator"]):
            yield f"{name}: {pool}: {body['type']} is not a TPU type on GKE"
            continue
        if int(body["hosts"]) != int(row["hosts"]):
            yield f"{name}: {pool}: a slice {body['type']} has {row['hosts']} hosts, not {body['hosts']}"
        machine = body.get("machine_type", row["gke_machine_type"])
        topology = body.get("topology", row["topology"])
        per_host = int(machine.rpartition("-")[2].removesuffix("t"))
        if math.prod(map(int, topology.split("x"))) != int(body["hosts"]) * per_host:
            yield f"{name}: {pool}: {body['hosts']} hosts {machine} do not have the chips of {topology}"
        if known.tpu_accelerators.get(machine.partition("-")[0]) != row["gke_accelerator"]:
            yield f"{name}: {pool}: {machine} has no {row['gke_accelerator']}"


def same_machines(known: Machines, table: Mapping[str, Row]) -> Iterator[str]:
    """The labels of TPU machines, and label and GPUs of GPU machines, are those of the package's table."""
    rows = list(table.values())
    for row in rows:
        machine = row["gke_machine_type"]
        if _TPU.fullmatch(row["gke_accelerator"]):
            stated = known.tpu_accelerators.get(machine.partition("-")[0])
            if stated != row["gke_accelerator"]:
                yield f"{machine} has {row['gke_accelerator']} in accelerators.csv, {stated} in tpu.tf"
            if machine.rpartition("-")[2] != f"{row['chips_per_host']}t":
                yield f"{machine} does not say that it has {row['chips_per_host']} chips; tpu.tf reads it from the name"
    for row in rows:
        instance = row.get("eks_instance_type", "")
        if instance and known.eks_types.get(instance, {}).get("type") != f"gpu-{row['accelerator_type']}":
            yield f"{instance} is gpu-{row['accelerator_type']} in accelerators.csv, but not in eks/machines.tf"
    by_machine = {row["gke_machine_type"]: row for row in rows if row["gke_machine_type"]}
    for name, gpu in known.gpu_types.items():
        row = by_machine.get(gpu["machine_type"])
        if not name.endswith(f"-{gpu['gpus']}"):
            yield f"{name} has {gpu['gpus']} GPUs"
        if row and (row["gke_accelerator"], row["chips_per_host"]) != (gpu["accelerator"], str(gpu["gpus"])):
            stated = f"{row['chips_per_host']} {row['gke_accelerator']}"
            yield f"{name}: accelerators.csv has {stated} in {gpu['machine_type']}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {unquoted(key): _plain(one) for key, one in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return unquoted(value) if isinstance(value, str) else value
