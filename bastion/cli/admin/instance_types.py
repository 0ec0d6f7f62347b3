"""`bastion instance-types`: what there is to run on.

Layer: cli.
"""

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
            raise Refused(f"there is no family {plain(call.operands[0])!r}; there are {', '.join(families)}")
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
        say(f"bastion instance-types FAMILY shows one family: {', '.join(families)}")
    return 0


def _place(kind: InstanceType) -> tuple[bool, str, int]:
    """Served ones first, each family together, its smallest first; the table has newer rows at its end."""
    return not kind.served, kind.resource_type, kind.amount


TYPES = Command(
    summary="Lists the instance types, with their hosts and what they cost of the quota.",
    usage="[FAMILY] [--output=json]",
    details="""QUOTA is what one slice takes of a project's share: the number in its name, which counts TensorCores for
        v2, v3, v4 and v5p, and chips for v5litepod and v6e. ZONES are those where the type was offered when this table
        was made; `bastion daemon check-config` says which ones a bastion uses.

        What is "known, not served" cannot be asked for: slices come from the Cloud TPU API, which does not
        offer it.""",
    examples=("bastion instance-types", "bastion instance-types v4", "bastion instance-types v5e --output=json"),
    operands=(0, 1),
    takes_target=False,
    takes_output=True,
    run=_run,
)
