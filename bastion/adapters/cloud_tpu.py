"""TPU slices through the Cloud TPU API v2, behind the `Provisioner` port.

Layer: adapters. A gang of N slices is N plain nodes: `b-<run>`, or `b-<run>-0` to `b-<run>-<N-1>`. Each of them carries
N in its metadata, so that a listing tells whether it is whole.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from google.cloud import tpu_v2

from bastion.adapters.cloud_tpu_client import CloudTpuSettings, make_client
from bastion.adapters.cloud_tpu_nodes import NodeStatus, ZoneNodes
from bastion.core.errors import ProvisionerError
from bastion.core.slices import SliceRef, SliceRequest, SliceState, SliceStatus, failure_of

__all__ = ["CloudTpuProvisioner", "CloudTpuSettings", "make_client"]


class CloudTpuProvisioner:
    """Behind the `Provisioner` port. Thread-safe.

    Args:
        client: For tests; `make_client(settings)` otherwise.
    """

    def __init__(self, settings: CloudTpuSettings, *, client: tpu_v2.TpuClient | None = None) -> None:
        self._settings = settings
        self._client = client or make_client(settings)
        self._zones: dict[str, ZoneNodes] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connection."""
        self._client.transport.close()  # type: ignore[no-untyped-call]

    def create(self, request: SliceRequest) -> None:
        """As the port says. The first node that is not accepted ends it; what was accepted makes a FAILED gang."""
        nodes = self._in(request.ref.zone)
        for name in _names(request.ref):
            nodes.create(name, request)

    def failure(self, ref: SliceRef) -> Exception | None:
        """As the port says; at most one call to the API for each node, not repeated.

        Raises:
            ProvisionerUnavailable: the API did not answer.
        """
        nodes = self._in(ref.zone)
        return next((error for name in _names(ref) if (error := nodes.failure(name)) is not None), None)

    def get(self, ref: SliceRef) -> SliceStatus | None:
        return self._complete(ref, {})

    def list(self, zone: str = "") -> Sequence[SliceStatus]:
        gangs: dict[str, dict[str, NodeStatus]] = {}
        for node in self._in(zone).list():
            name = node.name if node.num_slices == 1 else node.name.rpartition("-")[0]
            gangs.setdefault(name, {})[node.name] = node
        statuses = []
        for name, members in sorted(gangs.items()):
            ref = SliceRef(name=name, zone=zone, num_slices=max(node.num_slices for node in members.values()))
            whole = len(members) == ref.num_slices
            going = all(node.state is SliceState.DELETING for node in members.values())
            status = self._folded(ref, members) if whole or going else self._complete(ref, members)
            if status is not None:
                statuses.append(status)
        return statuses

    def delete(self, ref: SliceRef) -> None:
        """As the port says. A node that cannot be deleted keeps no other.

        Raises:
            ProvisionerRefused: a node has not this bastion's label, or we may not.
        """
        nodes = self._in(ref.zone)
        problems = []
        for name in _names(ref):
            try:
                nodes.delete(name)
            except ProvisionerError as error:  # noqa: PERF203 - each on its own is what the loop is for
                problems.append(error)
        if problems:
            raise problems[0]

    def _in(self, zone: str) -> ZoneNodes:
        zone = zone or self._settings.zone
        with self._lock:
            if zone not in self._zones:
                self._zones[zone] = ZoneNodes(self._settings, self._client, zone)
            return self._zones[zone]

    def _complete(self, ref: SliceRef, known: Mapping[str, NodeStatus]) -> SliceStatus | None:
        """The gang after each of its nodes that is not known was looked for."""
        nodes = self._in(ref.zone)
        found = {name: known.get(name) or nodes.get(name) for name in _names(ref)}
        members = {name: node for name, node in found.items() if node is not None}
        return self._folded(ref, members) if members else None

    def _folded(self, ref: SliceRef, members: Mapping[str, NodeStatus]) -> SliceStatus:
        """One status for a gang of which at least one node exists."""
        first = members[min(members)]
        missing = [name for name in _names(ref) if name not in members]
        state, failure = _state([node.state for node in members.values()]), None
        message = "; ".join(
            node.message if ref.num_slices == 1 else f"{node.name}: {node.message}"
            for node in members.values()
            if node.message
        )
        if missing and state not in (SliceState.DELETING, SliceState.LOST):
            state, failure = self._not_whole(ref, missing)
            message = message or f"{missing[0]} does not exist"
        return SliceStatus(
            ref=ref,
            run=first.run,
            token=first.token if len({node.token for node in members.values()}) == 1 else "",
            state=state,
            failure=failure,
            message=message,
            nodes={name: node.state for name, node in members.items()},
            labels=first.labels,
        )

    def _not_whole(self, ref: SliceRef, missing: Sequence[str]) -> tuple[SliceState, tuple[str, str] | None]:
        """What a gang is that lacks some nodes while others are well."""
        nodes = self._in(ref.zone)
        for name in missing:
            error = nodes.failure(name)
            if error is not None:
                return SliceState.FAILED, failure_of(error)
        if any(nodes.may_come(name) for name in missing):
            return SliceState.CREATING, None
        if any(nodes.was_created(name) for name in missing):
            return SliceState.LOST, None
        return SliceState.FAILED, ("infrastructure", f"{missing[0]} was never created")


def _names(ref: SliceRef) -> list[str]:
    return [ref.node(index) for index in range(ref.num_slices)]


def _state(states: Sequence[SliceState]) -> SliceState:
    """A gang's state by its nodes'. One that somebody deletes a node of is lost, until all of them are going."""
    if all(state is SliceState.DELETING for state in states):
        return SliceState.DELETING
    if SliceState.LOST in states or SliceState.DELETING in states:
        return SliceState.LOST
    return SliceState.CREATING if SliceState.CREATING in states else SliceState.READY
