"""`bastion instance-types`: what there is to run on.

Layer: cli.
"""

from __future__ import annotations

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.core import instance_types
from bastion.core.errors import Refused


def _run(call: Invocation) -> int:
    served = [kind for kind in instance_types.table().values() if kind.served]
    families = sorted({kind.resource_type for kind in served})
    if call.operands:
        family = call.operands[0].removeprefix("tpu-")
        if family not in families:
            raise Refused(f"there is no family {plain(family)!r}; there are {', '.join(families)}")
        served = [kind for kind in served if kind.resource_type == family]
    if call.json:
        emit_json(
            [
                {
                    "name": kind.name,
                    "resources": {kind.resource_type: kind.amount},
                    "hosts": kind.hosts,
                    "chips": kind.chips,
                    "devices_per_host": kind.devices_per_host,
                    "topology": kind.topology,
                    "zones": list(kind.zones),
                }
                for kind in served
            ]
        )
        return 0
    rows = [
        (kind.name, f"{kind.amount} {kind.resource_type}", str(kind.hosts), str(kind.chips), kind.topology)
        for kind in served
    ]
    print(table(("NAME", "QUOTA", "HOSTS", "CHIPS", "TOPOLOGY"), rows), end="")
    if not call.operands:
        say(f"bastion instance-types FAMILY shows one family: {', '.join(families)}")
    return 0


TYPES = Command(
    summary="Lists the instance types, with their hosts and what they cost of the quota.",
    usage="[FAMILY] [--output=json]",
    details="""QUOTA is what one slice takes of a project's share: the number in its name, which counts TensorCores for
        v2, v3, v4 and v5p, and chips for v5litepod and v6e.""",
    examples=("bastion instance-types", "bastion instance-types v4"),
    operands=(0, 1),
    takes_target=False,
    takes_output=True,
    run=_run,
)
