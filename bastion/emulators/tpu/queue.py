"""The emulated queued resources: accepted, waiting, provisioned, suspended, deleted.

    ACCEPTED > WAITING_FOR_RESOURCES > PROVISIONING > ACTIVE > SUSPENDING > SUSPENDED, or FAILED; then DELETING

Independent of gRPC and protobuf; `queue_service.py` translates. Invariants:

* Only `step` advances a queued resource, from the ledger's state, so a restart needs only a step.
* A queued resource is served when there is capacity for all its nodes. The oldest comes first; one that does not fit
  blocks no other.
* FAILED and SUSPENDED are final: they keep their quota and name until deleted.
* It leaves the ledger after its last node.
"""

from __future__ import annotations

import time
from typing import Protocol

from bastion.emulators.tpu.capacity import Capacity
from bastion.emulators.tpu.ledger import OpenLedger, in_location
from bastion.emulators.tpu.records import (
    ApiError,
    Code,
    NodeRecord,
    NodeState,
    OperationRecord,
    QueuedRecord,
    QueuedState,
)
from bastion.emulators.tpu.requests import NewQueuedResource, check_queued

# States that can be deleted without `force`. The client's documentation names ACCEPTED, FAILED and SUSPENDED; the
# service's says that WAITING_FOR_RESOURCES replaced ACCEPTED.
_DELETABLE = {
    QueuedState.ACCEPTED,
    QueuedState.WAITING_FOR_RESOURCES,
    QueuedState.FAILED,
    QueuedState.SUSPENDED,
}


class NodeKeeper(Protocol):
    """The owner of the nodes, for the queue. Called under the ledger's lock; returns at once."""

    def boot(self, name: str) -> None:
        """Start to boot a node that is in the ledger."""

    def reboot(self, name: str) -> None:
        """End a node's hosts and boot new ones."""

    def end(self, name: str) -> None:
        """Start to end a node; it leaves the ledger afterwards."""


class Queue:
    """All queued resources of one emulator, each waiting at least `wait_seconds`; thread-safe."""

    def __init__(
        self, ledger: OpenLedger, capacity: Capacity, keeper: NodeKeeper, *, hosts_max: int, wait_seconds: float
    ) -> None:
        self._ledger = ledger
        self._capacity = capacity
        self._keeper = keeper
        self._hosts_max = hosts_max
        self._wait_seconds = wait_seconds

    # ---- calls of the API

    def create(self, new: NewQueuedResource) -> OperationRecord:
        """Accept a queued resource; its operation ends when it waits for resources.

        Raises ApiError: INVALID_ARGUMENT, ALREADY_EXISTS or RESOURCE_EXHAUSTED.
        """
        check_queued(new, hosts_max=self._hosts_max)
        node = new.nodes[0]
        names = tuple(node.name for node in new.nodes)
        with self._ledger.lock:
            if self._ledger.find_queued(new.name) is not None:
                raise ApiError(Code.ALREADY_EXISTS, f"Resource '{new.name}' already exists")
            for name in names:
                if self._ledger.find_node(name) is not None:
                    raise ApiError(Code.ALREADY_EXISTS, f"Resource '{name}' already exists")
            self._capacity.require_quota(new.location, node.accelerator_type, len(names), spot=new.spot)
            operation = self._ledger.begin(new.location, new.name, "create")
            self._ledger.add_queued(
                QueuedRecord(
                    name=new.name,
                    nodes=names,
                    accelerator_type=node.accelerator_type,
                    service_account=node.service_account,
                    metadata=node.metadata,
                    sent=new.sent,
                    node_sent=node.sent,
                    created=operation.created,
                    since=operation.created,
                    create_operation=operation.name,
                    spot=new.spot,
                    reserved=new.reserved,
                    valid_after=new.valid_after,
                    valid_until=new.valid_until,
                )
            )
            self._ledger.save()
            return operation

    def get(self, name: str) -> QueuedRecord:
        """The queued resource of that name. Raises ApiError (NOT_FOUND)."""
        with self._ledger.lock:
            return self._ledger.queued(name)

    def list(self, location: str) -> list[QueuedRecord]:
        """The queued resources of a location, sorted by name; the zone `-` means all zones of the project."""
        found = [queued for queued in self._ledger.queued_resources if in_location(queued.location, location)]
        return sorted(found, key=lambda queued: queued.name)

    def delete(self, name: str, *, force: bool) -> OperationRecord:
        """Accept the deletion of a queued resource and its nodes; repeated requests get the same operation.

        Raises ApiError: NOT_FOUND; FAILED_PRECONDITION if it has nodes and `force` is not set, or it is being
        suspended.
        """
        with self._ledger.lock:
            queued = self._ledger.queued(name)
            if queued.state is QueuedState.DELETING:
                return self._ledger.operation(queued.delete_operation)
            if queued.state is QueuedState.SUSPENDING:
                raise ApiError(
                    Code.FAILED_PRECONDITION,
                    f"Queued resource '{name}' is in state SUSPENDING and cannot be deleted until it is SUSPENDED",
                )
            has_nodes = bool(self._ledger.nodes_of(queued)) or queued.state is QueuedState.PROVISIONING
            if not force and has_nodes and queued.state not in _DELETABLE:
                raise ApiError(
                    Code.FAILED_PRECONDITION,
                    f"Queued resource '{name}' is in state {queued.state.name} and has nodes; delete its nodes first, "
                    "or set force",
                )
            return self._begin_delete(queued)

    def reset(self, name: str) -> OperationRecord:
        """Accept a restart of all nodes of an active queued resource: same names, new hosts.

        Raises ApiError: NOT_FOUND; FAILED_PRECONDITION if it is not active.
        """
        with self._ledger.lock:
            queued = self._ledger.queued(name)
            if queued.state is not QueuedState.ACTIVE:
                raise ApiError(
                    Code.FAILED_PRECONDITION,
                    f"Queued resource '{name}' is in state {queued.state.name}; only an ACTIVE one can be reset",
                )
            operation = self._ledger.begin(queued.location, name, "reset")
            self._ledger.change_queued(name, state=QueuedState.PROVISIONING, reset_operation=operation.name)
            for node in self._ledger.nodes_of(queued):
                self._ledger.change_node(node.name, state=NodeState.RESTARTING, health_description="")
                self._keeper.reboot(node.name)
            self._ledger.save()
            return operation

    def check_node_delete(self, node: NodeRecord) -> None:
        """Raise ApiError (FAILED_PRECONDITION) for one node of several, or a queued resource in transition."""
        queued = self._ledger.find_queued(node.queued)
        if queued is None:
            return
        if node.slices > 1:
            raise ApiError(
                Code.FAILED_PRECONDITION,
                f"Node '{node.name}' is one of {node.slices} of queued resource '{queued.name}' and cannot be deleted "
                "alone; delete the queued resource with force",
            )
        if queued.state in (QueuedState.PROVISIONING, QueuedState.SUSPENDING, QueuedState.DELETING):
            raise ApiError(
                Code.FAILED_PRECONDITION,
                f"Node '{node.name}' belongs to queued resource '{queued.name}', which is in state {queued.state.name}",
            )

    # ---- changes

    def fail(self, name: str, code: int, message: str) -> None:
        """Fail after one of its nodes could not be made, and end the others. The caller holds the ledger's lock."""
        queued = self._ledger.find_queued(name)
        if queued is None or queued.state in (QueuedState.FAILED, QueuedState.DELETING):
            return
        self._ledger.change_queued(name, state=QueuedState.FAILED, error_code=code, error_message=message)
        self._ledger.finish(queued.create_operation)
        self._ledger.finish(queued.reset_operation, code, message)
        for node in self._ledger.nodes_of(queued):
            self._keeper.end(node.name)

    def delete_all(self) -> None:
        """Delete everything, in any state, at the emulator's orderly end."""
        with self._ledger.lock:
            for queued in self._ledger.queued_resources:
                if queued.state is not QueuedState.DELETING:
                    self._begin_delete(queued)

    def step(self) -> None:
        """Advance everything that can advance."""
        with self._ledger.lock:
            before = self._ledger.queued_resources
            for queued in sorted(before, key=lambda queued: queued.created):
                self._move(queued, time.time())
            if self._ledger.queued_resources != before:
                self._ledger.save()

    # ---- steps

    def _move(self, queued: QueuedRecord, now: float) -> None:
        match queued.state:
            case QueuedState.ACCEPTED:
                self._ledger.change_queued(queued.name, state=QueuedState.WAITING_FOR_RESOURCES)
                self._ledger.finish(queued.create_operation)
            case QueuedState.WAITING_FOR_RESOURCES:
                self._serve(queued, now)
            case QueuedState.PROVISIONING:
                nodes = self._ledger.nodes_of(queued)
                if len(nodes) == len(queued.nodes) and all(node.state is NodeState.READY for node in nodes):
                    # In this order, so that a client that sees the operation done also sees the state.
                    self._ledger.change_queued(queued.name, state=QueuedState.ACTIVE)
                    self._ledger.finish(queued.reset_operation)
            case QueuedState.SUSPENDING:
                # A preempted node stays visible; it ends with its hosts.
                nodes = self._ledger.nodes_of(queued)
                taken = all(node.state is NodeState.PREEMPTED for node in nodes)
                if taken and not any(host.alive for node in nodes for host in node.hosts):
                    self._ledger.change_queued(queued.name, state=QueuedState.SUSPENDED)
            case QueuedState.DELETING:
                if not self._ledger.nodes_of(queued):
                    self._ledger.drop_queued(queued.name)
                    self._ledger.finish(queued.delete_operation)
            case _:
                pass  # ACTIVE, FAILED and SUSPENDED last until an event

    def _serve(self, queued: QueuedRecord, now: float) -> None:
        """Give a waiting queued resource its nodes, if its time has come and there is capacity."""
        if queued.valid_until is not None and now >= queued.valid_until:
            message = "The queued resource's 'valid until' start timing constraint expired before it was provisioned"
            return self.fail(queued.name, Code.DEADLINE_EXCEEDED, message)
        if now < max(queued.since + self._wait_seconds, queued.valid_after or 0.0):
            return None
        if not self._capacity.fits(queued.location, queued.accelerator_type, len(queued.nodes)):
            return None
        for name in queued.nodes:
            if self._ledger.find_node(name) is not None:
                return self.fail(queued.name, Code.ALREADY_EXISTS, f"Resource '{name}' already exists")
        self._ledger.change_queued(queued.name, state=QueuedState.PROVISIONING)
        for index, name in enumerate(queued.nodes):
            self._ledger.add_node(NodeRecord.of_queued(queued, index, now))
            self._keeper.boot(name)
        return None

    def _begin_delete(self, queued: QueuedRecord) -> OperationRecord:
        operation = self._ledger.begin(queued.location, queued.name, "delete")
        message = "the queued resource was deleted"
        self._ledger.finish(queued.create_operation, Code.CANCELLED, message)
        self._ledger.finish(queued.reset_operation, Code.CANCELLED, message)
        self._ledger.change_queued(queued.name, state=QueuedState.DELETING, delete_operation=operation.name)
        for node in self._ledger.nodes_of(queued):
            self._keeper.end(node.name)
        self._ledger.save()
        return operation
