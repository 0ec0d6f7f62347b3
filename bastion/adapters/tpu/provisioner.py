"""TPU slices through the Cloud TPU API v2, behind the `Provisioner` port.

A single slice on demand is a plain node, which comes at once or not at all. Everything else is a queued resource:
several slices, which come together, and spot and reserved capacity, which can wait. A gang `b-<run>` is the queued
resource `b-<run>`, if any, with the nodes `b-<run>`, or `b-<run>-0` to `b-<run>-<N-1>`. No state says which: both are
looked up, and the gang is gone when neither is left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from google.cloud import tpu_v2

from bastion.adapters.tpu.client import CloudTpuSettings, make_client
from bastion.adapters.tpu.creations import InternalErrors, ZoneCreations
from bastion.adapters.tpu.nodes import NodeStatus, ZoneNodes
from bastion.adapters.tpu.queue import QueuedStatus, ZoneQueue
from bastion.core.errors import ProvisionerError, ProvisionerRefused
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangState, GangStatus, failure_of

__all__ = ["CloudTpuProvisioner", "CloudTpuSettings", "make_client"]

# In these states a queued resource alone decides; otherwise its nodes do.
_BY_QUEUE = (GangState.WAITING, GangState.FAILED, GangState.LOST, GangState.DELETING)


class CloudTpuProvisioner:
    """Behind the `Provisioner` port; thread-safe. `client` is for tests."""

    def __init__(self, settings: CloudTpuSettings, *, client: tpu_v2.TpuClient | None = None) -> None:
        self._settings = settings
        self._client = client or make_client(settings)
        self._internal_errors = InternalErrors()
        self._zones: dict[str, _Zone] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._client.transport.close()  # type: ignore[no-untyped-call]

    def create(self, request: GangRequest) -> None:
        self._in(request.ref.zone).create(request)

    def failure(self, ref: GangRef) -> Exception | None:
        """See the port; at most one call, and none for a gang last seen as creating. Raises ProvisionerUnavailable."""
        return self._in(ref.zone).creations.failure(ref.name)

    def get(self, ref: GangRef) -> GangStatus | None:
        return self._in(ref.zone).get(ref)

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        """See the port: two listings, and a lookup of each gang that they show partially."""
        return self._in(zone).list(zone)

    def delete(self, ref: GangRef) -> None:
        """See the port. Raises ProvisionerRefused for a part without our label or permission; the rest still goes."""
        self._in(ref.zone).delete(ref)

    def _in(self, name: str) -> _Zone:
        name = name or self._settings.zone
        with self._lock:
            if name not in self._zones:
                self._zones[name] = _Zone(self._settings, self._client, name, self._internal_errors)
            return self._zones[name]


class _Zone:
    """The gangs of one zone."""

    def __init__(
        self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, name: str, internal_errors: InternalErrors
    ) -> None:
        self._nodes = ZoneNodes(settings, client, name)
        self._queue = ZoneQueue(settings, client, name)
        self._internal_errors = internal_errors
        self.creations = ZoneCreations(settings, client, name, internal_errors)

    def create(self, request: GangRequest) -> None:
        plain = request.ref.num_slices == 1 and request.place.model is CapacityModel.ON_DEMAND
        creator = self._nodes if plain else self._queue
        self.creations.start(request.ref.name, lambda: creator.create(request))

    def get(self, ref: GangRef) -> GangStatus | None:
        # The queued resource first: none of its nodes outlives it or appears without it.
        queued = self._queue.get(ref.name)
        nodes: dict[str, NodeStatus] = {}
        if queued is None or queued.state is not GangState.WAITING:
            found = {name: self._nodes.get(name) for name in _names(ref)}
            nodes = {name: node for name, node in found.items() if node is not None}
        if queued is None and not nodes:
            self.creations.saw(ref.name, None)
            return None
        self.creations.saw(ref.name, _raw_state(ref, queued, nodes))
        return self._folded(ref, queued, nodes)

    def list(self, zone: str) -> Sequence[GangStatus]:
        queue = {queued.name: queued for queued in self._queue.list()}
        nodes: dict[str, dict[str, NodeStatus]] = {}
        for node in self._nodes.list():
            nodes.setdefault(node.gang, {})[node.name] = node
        refs = [
            GangRef(name=name, zone=zone, num_slices=_num_slices(queue.get(name), nodes.get(name, {})))
            for name in sorted({*queue, *nodes})
        ]
        self.creations.seen({r.name: _raw_state(r, queue.get(r.name), nodes.get(r.name, {})) for r in refs})
        self.creations.look_at_one()
        statuses = []
        for ref in refs:
            queued, members = queue.get(ref.name), nodes.get(ref.name, {})
            certain = _is_certain(ref, queued, members)
            status = self._folded(ref, queued, members) if certain else self.get(ref)
            if status is not None:
                statuses.append(status)
        return statuses

    def delete(self, ref: GangRef) -> None:
        problems: list[ProvisionerError] = []
        queued = False
        try:
            queued = self._queue.delete(ref.name)
        except ProvisionerRefused as error:
            problems.append(error)
        if not queued:  # its nodes go with it
            for name in _names(ref):
                try:
                    self._nodes.delete(name)
                except ProvisionerError as error:  # noqa: PERF203 - each on its own
                    problems.append(error)
        if problems:
            raise problems[0]
        self.creations.deleted(ref.name)

    def _folded(self, ref: GangRef, queued: QueuedStatus | None, nodes: Mapping[str, NodeStatus]) -> GangStatus:
        """Return the status of a gang of which something exists."""
        state = _raw_state(ref, queued, nodes)
        failure = None
        if queued is not None and state is GangState.FAILED:
            code, text = queued.error
            failure = failure_of(self._internal_errors.failure(ref.name, code, text or "it does not say why"))
        elif queued is None and state is GangState.CREATING:
            error = self.creations.known_failure(ref.name)
            if error is not None:  # and yet its node still exists
                state, failure = GangState.FAILED, failure_of(error)
        elif state is GangState.READY:
            self._internal_errors.came_up(ref.name)
        owner = queued or nodes[min(nodes)]
        tokens = {known.token for known in ([queued] if queued else []) + [*nodes.values()]}
        return GangStatus(
            ref=ref,
            run=owner.run,
            token=owner.token if len(tokens) == 1 else "",
            state=state,
            waiting=queued.word if queued is not None and state is GangState.WAITING else "",
            failure=failure,
            message=_message(ref, state, queued, nodes),
            nodes={name: node.state for name, node in nodes.items()},
            labels=owner.labels,
        )


def _names(ref: GangRef) -> list[str]:
    return [ref.node(index) for index in range(ref.num_slices)]


def _num_slices(queued: QueuedStatus | None, nodes: Mapping[str, NodeStatus]) -> int:
    return max([node.num_slices for node in nodes.values()] + ([queued.num_slices] if queued is not None else []))


def _is_certain(ref: GangRef, queued: QueuedStatus | None, nodes: Mapping[str, NodeStatus]) -> bool:
    """Whether a listing is conclusive; otherwise only a lookup tells that a part is missing."""
    going = bool(nodes) and all(node.state is GangState.DELETING for node in nodes.values())
    if len(nodes) == ref.num_slices or going:
        return True
    return queued is not None and queued.state is not GangState.READY


def _raw_state(ref: GangRef, queued: QueuedStatus | None, nodes: Mapping[str, NodeStatus]) -> GangState:
    """Return a gang's state from its parts. If someone deletes a node, the gang is lost until all of it is going."""
    if queued is not None and queued.state in _BY_QUEUE:
        return queued.state
    states = {node.state for node in nodes.values()}
    if queued is None and states == {GangState.DELETING}:
        return GangState.DELETING
    if states & {GangState.LOST, GangState.DELETING}:
        return GangState.LOST
    if len(nodes) < ref.num_slices:
        coming = queued is not None and queued.state is GangState.CREATING
        return GangState.CREATING if coming else GangState.LOST
    return GangState.CREATING if GangState.CREATING in states else GangState.READY


def _message(ref: GangRef, state: GangState, queued: QueuedStatus | None, nodes: Mapping[str, NodeStatus]) -> str:
    parts = [queued.message] if queued is not None and queued.message else []
    for name in _names(ref):
        node = nodes.get(name)
        if node is not None and node.message:
            parts.append(node.message if ref.num_slices == 1 else f"{name}: {node.message}")
        elif node is None and state is GangState.LOST and not (queued is not None and queued.message):
            parts.append(f"{name} does not exist")
    return "; ".join(parts)
