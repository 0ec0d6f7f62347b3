"""`bastion instance-types`: the available hardware."""

from __future__ import annotations

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.core.model.instance_types import InstanceType

_NOT_SERVED = "known, not served"


def _run(call: Invocation) -> int:
    kinds = sorted(instance_types.table().values(), key=_place)
    families = tuple(dict.fromkeys(kind.resource_type for kind in kinds))
    if call.operands:
        family = instance_types.resource_type_of(call.operands[0])
        if not family:
            raise Refused(f"no such resource type: {plain(call.operands[0])!r}; use one of {', '.join(families)}")
        kinds = [kind for kind in kinds if kind.resource_type == family]
    if call.json:
        emit_json(
            [
                {
                    "name": kind.name,
                    "served": kind.served,
                    "resources": {kind.resource_type: kind.amount},
                    "hosts": kind.hosts,
                    "chips": kind.chips,
                    "devices_per_host": kind.devices_per_host,
                    "topology": kind.topology,
                    "zones": list(kind.zones),
                }
                for kind in kinds
            ]
        )
        return 0
    rows = [
        (
            kind.name,
            f"{kind.amount} {kind.resource_type}",
            str(kind.hosts),
            str(kind.chips),
            kind.topology,
            " ".join(kind.zones) if kind.served else _NOT_SERVED,
        )
        for kind in kinds
    ]
    print(table(("NAME", "QUOTA", "HOSTS", "CHIPS", "TOPOLOGY", "ZONES"), rows), end="")
    if not call.operands:
        say(f"use bastion instance-types RESOURCE_TYPE to show one resource type: {', '.join(families)}")
    return 0


def _place(kind: InstanceType) -> tuple[bool, str, int]:
    """The sort key: served types first, by resource type, smallest first."""
    return not kind.served, kind.resource_type, kind.amount


TYPES = Command(
    summary="Lists the instance types, with their hosts and their use of quota.",
    usage="[RESOURCE_TYPE] [--output=json]",
    details="""QUOTA is how many units of a project's share one slice uses: the number in its name, which counts
        TensorCores for v2, v3, v4 and v5p, and chips for v5litepod and v6e. ZONES are those that offered the type when
        this table was made; `bastion daemon check-config` shows the zones that a bastion uses.

        You cannot use the types "known, not served": the Cloud TPU API does not offer them.""",
    examples=("bastion instance-types", "bastion instance-types v4", "bastion instance-types v5e --output=json"),
    operands=(0, 1),
    takes_target=False,
    takes_output=True,
    run=_run,
)
