"""Limits: the slices that exist in a zone, and the project's quota in a region; unlimited by default.

As in the real service these differ. Capacity is physical: a placed node holds it until its hosts end; without it a
plain node's operation fails with a stockout, and a queued resource waits. Quota is administrative: everything that
exists counts until it is deleted, including waiting, FAILED and SUSPENDED queued resources; a request beyond it fails
at once with RESOURCE_EXHAUSTED.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.emulators.tpu.ledger import OpenLedger, units
from bastion.emulators.tpu.records import ApiError, Code, NodeRecord, NodeState, QueuedRecord

# (zone, accelerator type), counted in nodes, or (zone or region, resource type), counted in units of quota.
Limits = Mapping[tuple[str, str], int]


def parse_limits(texts: Iterable[str]) -> dict[tuple[str, str], int]:
    """Parse limits such as `us-central2-b/v4-8=2` (two nodes) or `us-central2-b/v4=64` (64 units). Raises Refused."""
    accelerator_types = {instance_type.accelerator_type for instance_type in instance_types.table().values()}
    resource_types = {instance_type.resource_type for instance_type in instance_types.table().values()}
    limits = {}
    for text in texts:
        place, _, number = text.partition("=")
        where, _, what = place.partition("/")
        if not where or not number.isdigit():
            raise Refused(f"'{text}' is not ZONE/TYPE=NUMBER, such as us-central2-b/v4-8=2")
        if what not in accelerator_types | resource_types:
            raise Refused(
                f"'{text}' names no accelerator type (v4-8) or resource type (v4); see `bastion instance-types`"
            )
        limits[where, what] = int(number)
    return limits


@dataclass(slots=True)
class Capacity:
    """What is left, computed from the ledger each time. The caller holds the ledger's lock.

    Attributes:
        exists: By zone, and accelerator type (in nodes) or resource type (in units).
        quota: By region (`us-central2`) and resource type, in units.
    """

    ledger: OpenLedger
    exists: dict[tuple[str, str], int] = field(default_factory=dict)
    quota: dict[tuple[str, str], int] = field(default_factory=dict)

    def fits(self, location: str, accelerator_type: str, nodes: int) -> bool:
        """Whether that many more nodes can be placed now."""
        zone = location.rpartition("/")[2]
        instance_type = instance_types.table()[accelerator_type]
        of_accelerator_type, of_resource_type = (
            self.exists.get((zone, accelerator_type)),
            self.exists.get((zone, instance_type.resource_type)),
        )
        if of_accelerator_type is None and of_resource_type is None:
            return True
        types, amount = 0, 0
        for node in self.ledger.nodes:
            # The service took back a preempted node's capacity.
            if node.location.rpartition("/")[2] == zone and node.placed and node.state is not NodeState.PREEMPTED:
                types += node.accelerator_type == accelerator_type
                other = instance_types.table()[node.accelerator_type]
                amount += other.amount if other.resource_type == instance_type.resource_type else 0
        if of_accelerator_type is not None and types + nodes > of_accelerator_type:
            return False
        return of_resource_type is None or amount + nodes * instance_type.amount <= of_resource_type

    def require_quota(self, location: str, accelerator_type: str, nodes: int, *, spot: bool) -> None:
        """Raise ApiError (RESOURCE_EXHAUSTED) with the limit if the project's quota is too small."""
        region = _region(location)
        instance_type = instance_types.table()[accelerator_type]
        limit = self.quota.get((region, instance_type.resource_type))
        if limit is None:
            return
        records: list[NodeRecord | QueuedRecord] = [
            *(node for node in self.ledger.nodes if not node.queued),
            *self.ledger.queued_resources,
        ]
        held = sum(
            units(record)
            for record in records
            if _region(record.location) == region
            and instance_types.table()[record.accelerator_type].resource_type == instance_type.resource_type
        )
        if held + nodes * instance_type.amount > limit:
            metric = (
                f"TPU{instance_type.resource_type.upper()}{'Preemptible' if spot else ''}PerProjectPerRegionForTPUAPI"
            )
            raise ApiError(
                Code.RESOURCE_EXHAUSTED, f"Quota limit '{metric}' has been exceeded. Limit: {limit} in region {region}."
            )


def _region(location: str) -> str:
    zone = location.rpartition("/")[2]
    return zone.rpartition("-")[0] or zone
