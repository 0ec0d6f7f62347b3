"""Creation requests, and the API's errors for invalid ones. Independent of messages and state."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core.model import instance_types
from bastion.emulators.tpu.records import ApiError, Code

NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
QUEUED_ID = re.compile(r"[A-Za-z0-9_.~+%-]{1,63}")
LOCATION = re.compile(r"projects/(?P<project>[a-z0-9][-a-z0-9.:]{0,62})/locations/(?P<zone>[a-z0-9][-a-z0-9]{0,62})")
_METADATA_VALUE_MAX_BYTES = 256 * 1024
_METADATA_MAX_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """A node; `sent` as in `NodeRecord`."""

    location: str
    node_id: str
    accelerator_type: str
    runtime_version: str
    service_account: str
    metadata: dict[str, str]
    sent: str
    spot: bool = False
    reserved: bool = False

    @property
    def name(self) -> str:
        return f"{self.location}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueuedResource:
    """A queued resource.

    Attributes:
        nodes: One for each slice; equal except for the id.
        sent: As in `QueuedRecord`.
        reservation: Name of a reservation, or empty.
        valid_after, valid_until: As in `QueuedRecord`.
    """

    location: str
    queued_id: str
    nodes: tuple[NewNode, ...]
    sent: str
    spot: bool = False
    reserved: bool = False
    reservation: str = ""
    valid_after: float | None = None
    valid_until: float | None = None

    @property
    def name(self) -> str:
        return f"{self.location}/queuedResources/{self.queued_id}"


def check_node(new: NewNode, *, hosts_max: int) -> None:
    """Raise ApiError (INVALID_ARGUMENT) for what the API or this machine does not allow."""
    instance_type = instance_types.table().get(new.accelerator_type)
    location = LOCATION.fullmatch(new.location)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in new.metadata.items())
    if location is None:
        raise _invalid(f"'{new.location}' is not projects/PROJECT/locations/ZONE")
    if not NODE_ID.fullmatch(new.node_id):
        raise _invalid(f"'{new.node_id}' is not a node id; it must match {NODE_ID.pattern}")
    if instance_type is None or not instance_type.on_cloud_tpu:
        valid = ", ".join(
            instance_type.accelerator_type
            for instance_type in instance_types.table().values()
            if instance_type.on_cloud_tpu
        )
        raise _invalid(
            f'CloudTpu received an invalid AcceleratorType "{new.accelerator_type}" for zone "{location["zone"]}". '
            f"Valid values are: {valid}"
        )
    if not new.runtime_version:
        raise _invalid("runtime_version is required")
    if size > _METADATA_MAX_BYTES or any(
        len(value.encode()) > _METADATA_VALUE_MAX_BYTES for value in new.metadata.values()
    ):
        raise _invalid(
            f"metadata is too large: {size} bytes; a value may have {_METADATA_VALUE_MAX_BYTES} and all together "
            f"{_METADATA_MAX_BYTES}"
        )
    if instance_type.hosts > hosts_max:
        raise _invalid(
            f"{new.accelerator_type} has {instance_type.hosts} hosts; this machine emulates at most {hosts_max} per "
            f"node (each takes about 0.3 s and 160 MB under JAX); choose a smaller type, or set "
            f"BASTION_EMULATOR_HOSTS_MAX={instance_type.hosts} and restart the emulator: bastion local down, "
            "bastion local up"
        )


def check_queued(new: NewQueuedResource, *, hosts_max: int) -> None:
    """Raise ApiError (INVALID_ARGUMENT) for what the API or this machine does not allow."""
    if not QUEUED_ID.fullmatch(new.queued_id):
        raise _invalid(f"'{new.queued_id}' is not a queued resource id; it must match {QUEUED_ID.pattern}")
    for node in new.nodes:
        check_node(node, hosts_max=hosts_max)
        if node.location != new.location:
            raise _invalid(f"the node's parent is '{node.location}', but the queued resource's is '{new.location}'")
    if new.reservation:
        prefix, _, reservation = new.reservation.rpartition("/")
        if prefix != f"{new.location}/reservations" or not reservation:
            raise _invalid(f"'{new.reservation}' is not {new.location}/reservations/RESERVATION")
        if new.spot:
            raise _invalid("a queued resource of the spot tier cannot use a reservation")


def _invalid(message: str) -> ApiError:
    return ApiError(Code.INVALID_ARGUMENT, message)
