"""`bastion instance-types`: the available hardware."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.core.model.clusters import PROVIDER_NAMES
from bastion.core.model.instance_types import InstanceType

_NOT_SERVED = "known, not served"


def _run(call: Invocation) -> int:
    types = sorted(instance_types.table().values(), key=_order)
    resource_types = tuple(dict.fromkeys(each.resource_type for each in types))
    if call.operands:
        resource_type = instance_types.resource_type_of(call.operands[0])
        if not resource_type:
            raise Refused(f"no such resource type: {plain(call.operands[0])!r}; use one of {', '.join(resource_types)}")
        types = [each for each in types if each.resource_type == resource_type]
    if call.json:
        emit_json(
            [
                {
                    "name": each.name,
                    "served": each.served,
                    "platforms": list(_platforms(each)),
                    "providers": list(each.providers),
                    "resources": {each.resource_type: each.amount},
                    "hosts": each.hosts,
                    "chips": each.chips,
                    "devices_per_host": each.devices_per_host,
                    "topology": each.topology,
                    "zones": list(each.zones),
                }
                for each in types
            ]
        )
        return 0
    rows = [
        (
            each.name,
            f"{each.amount} {each.resource_type}",
            str(each.hosts),
            str(each.chips),
            each.topology,
            ", ".join(_platforms(each).values()) or _NOT_SERVED,
            " ".join(each.zones) if each.served else "",
        )
        for each in types
    ]
    print(table(("NAME", "QUOTA", "HOSTS", "CHIPS", "TOPOLOGY", "WHERE", "ZONES"), rows), end="")
    if not call.operands:
        say(f"use bastion instance-types RESOURCE_TYPE to show one resource type: {', '.join(resource_types)}")
    return 0


def _platforms(instance_type: InstanceType) -> dict[str, str]:
    """Where slices of the type exist: names for programs, and for people."""
    found = {}
    if instance_type.on_cloud_tpu:
        found["cloud-tpu"] = "Cloud TPU"
    if instance_type.on_kubernetes:
        found["kubernetes"] = "Kubernetes" if instance_type.kind == "tpu" else ", ".join(_clusters(instance_type))
    return found


def _clusters(instance_type: InstanceType) -> Iterator[str]:
    for provider in instance_type.providers:
        yield "generic clusters" if provider == "generic" else PROVIDER_NAMES[provider]


def _order(instance_type: InstanceType) -> tuple[bool, str, int]:
    """Served types first, by resource type, smallest first."""
    return not instance_type.served, instance_type.resource_type, instance_type.amount


TYPES = Command(
    summary="Lists the instance types, with their hosts and their use of quota.",
    usage="[RESOURCE_TYPE] [--output=json]",
    details="""QUOTA is how many units of a project's share one slice uses: the number in its name, which counts
        TensorCores for v2, v3, v4, v5p and TPU7x, chips for v5litepod and v6e, and GPUs for GPUs. A slice of GPUs is
        one host; ask for more with --num_replicas. WHERE says whether slices come from the Cloud TPU API, from
        Kubernetes clusters, or both, and which clusters have machines with that many GPUs. ZONES are those of Google
        Cloud that offered the type when this table was made; `bastion daemon check-config` shows the places that a
        bastion uses.

        You cannot use the types "known, not served": neither Cloud TPU nor Bastion on Kubernetes offers them.""",
    examples=(
        "bastion instance-types",
        "bastion instance-types v4",
        "bastion instance-types h100",
        "bastion instance-types v5e --output=json",
    ),
    operands=(0, 1),
    takes_target=False,
    takes_output=True,
    run=_run,
)
