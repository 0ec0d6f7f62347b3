"""The ledger of a running emulator: guarded by one lock, written at every change, copied to the event log.

If the disk is full, changes are written when there is space. A crash before that loses them: a node's hosts are swept,
or a deleted node returns.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from pathlib import Path
from typing import TypeVar

from bastion.core.model import instance_types
from bastion.emulators.tpu.events import EventLog
from bastion.emulators.tpu.records import (
    ApiError,
    Code,
    Initiator,
    Ledger,
    NodeRecord,
    OperationRecord,
    QueuedRecord,
    QueuedState,
)

_log = logging.getLogger(__name__)
_Record = TypeVar("_Record")


class OpenLedger:
    """The state, and the only way to change it. Hold `lock` around changes that belong together."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "state.json"
        self._events = EventLog(state_dir / "events.jsonl")
        self._ledger = Ledger()
        self._unsaved = False
        self.lock = threading.RLock()
        # Set at every save, because something may be due now.
        self.changed = threading.Event()

    def load(self) -> None:
        self._ledger = Ledger.load(self._file)
        self._events.note("started")
        for node in self._ledger.nodes.values():
            self._events.note("known", node.name, node.accelerator_type, 0 if node.queued else units(node))
        for queued in self._ledger.queued.values():
            self._events.note("known", queued.name, queued.accelerator_type, units(queued))

    def save(self) -> None:
        """Write everything; on failure write later."""
        with self.lock:
            try:
                self._ledger.save(self._file)
            except OSError as error:
                if not self._unsaved:
                    _log.error("cannot write %s; will retry: %s", self._file, error)
                self._unsaved = True
            else:
                self._unsaved = False
        self.changed.set()

    def save_soon(self) -> None:
        """Write with the next check, for changes that a crash may lose."""
        self._unsaved = True
        self.changed.set()

    def save_what_is_left(self) -> None:
        """Write what could not be written before."""
        if self._unsaved:
            self.save()

    # ---- nodes

    @property
    def nodes(self) -> list[NodeRecord]:
        with self.lock:
            return list(self._ledger.nodes.values())

    def find_node(self, name: str) -> NodeRecord | None:
        return self._ledger.nodes.get(name)

    def node(self, name: str) -> NodeRecord:
        """The node of that name. Raises ApiError (NOT_FOUND)."""
        return _found(self._ledger.nodes.get(name), name)

    def nodes_of(self, queued: QueuedRecord) -> list[NodeRecord]:
        """The existing nodes of a queued resource, by slice."""
        with self.lock:
            found = [self._ledger.nodes.get(name) for name in queued.nodes]
            return [node for node in found if node is not None and node.queued == queued.name]

    def add_node(self, node: NodeRecord) -> None:
        self._ledger.nodes[node.name] = node
        self._events.note("accepted", node.name, node.accelerator_type, 0 if node.queued else units(node))

    def change_node(self, name: str, **fields: object) -> NodeRecord:
        """Change fields of a node; a new state is an event."""
        before = self._ledger.nodes[name]
        after = self._ledger.nodes[name] = before.model_copy(update=fields)
        if after.state is not before.state:
            held = 0 if after.queued else units(after)
            self._events.note(after.state.name.lower(), name, after.accelerator_type, held)
        return after

    def drop_node(self, name: str) -> None:
        node = self._ledger.nodes.pop(name)
        self._events.note("gone", name, node.accelerator_type)

    # ---- queued resources

    @property
    def queued_resources(self) -> list[QueuedRecord]:
        with self.lock:
            return list(self._ledger.queued.values())

    def find_queued(self, name: str) -> QueuedRecord | None:
        return self._ledger.queued.get(name)

    def queued(self, name: str) -> QueuedRecord:
        """The queued resource of that name. Raises ApiError (NOT_FOUND)."""
        return _found(self._ledger.queued.get(name), name)

    def add_queued(self, queued: QueuedRecord) -> None:
        self._ledger.queued[queued.name] = queued
        self._events.note("accepted", queued.name, queued.accelerator_type, units(queued))

    def change_queued(self, name: str, **fields: object) -> QueuedRecord:
        """Change fields of a queued resource; a new state is an event and resets `since`."""
        before = self._ledger.queued[name]
        after = before.model_copy(update=fields)
        if after.state is not before.state:
            after = after.model_copy(update={"since": time.time()})
            self._events.note(after.state.name.lower(), name, after.accelerator_type, units(after))
            _log.info("queued resource %s is %s", name, after.state.name)
        self._ledger.queued[name] = after
        return after

    def suspend_queued(self, name: str, initiator: Initiator) -> None:
        """Mark an active queued resource as SUSPENDING; any other keeps its state."""
        if self._ledger.queued[name].state is QueuedState.ACTIVE:
            self.change_queued(name, state=QueuedState.SUSPENDING, initiator=initiator)

    def drop_queued(self, name: str) -> None:
        queued = self._ledger.queued.pop(name)
        self._events.note("gone", name, queued.accelerator_type)

    # ---- operations

    def begin(self, location: str, target: str, verb: str) -> OperationRecord:
        now = time.time()
        # Names sort by time, so listing by name is listing by age.
        name = f"{location}/operations/operation-{int(now * 1e6):016d}-{uuid.uuid4().hex[:8]}"
        operation = OperationRecord(name=name, target=target, verb=verb, created=now)
        self._ledger.operations[name] = operation
        return operation

    def finish(self, operation: str, code: int = 0, message: str = "") -> None:
        """End a running operation; any other stays as it is."""
        found = self._ledger.operations.get(operation)
        if found is not None and found.ended is None:
            self._ledger.operations[operation] = found.finished(code, message)

    def operation(self, name: str) -> OperationRecord:
        """The operation of that name. Raises ApiError (NOT_FOUND)."""
        found = self._ledger.operations.get(name)
        if found is None:
            raise ApiError(Code.NOT_FOUND, f"Operation '{name}' was not found")
        return found

    def operations(self, location: str) -> list[OperationRecord]:
        """The operations of a location, sorted by name and thus by age."""
        with self.lock:
            prefix = f"{location}/operations/"
            return [found for name, found in sorted(self._ledger.operations.items()) if name.startswith(prefix)]

    def cancel(self, name: str) -> None:
        """Accept the request; as in the API, it is best effort; here it has no effect. Raises ApiError (NOT_FOUND)."""
        with self.lock:
            self._ledger.operations[name] = self.operation(name).model_copy(update={"cancel_requested": True})
            self.save()

    def forget(self, name: str) -> None:
        """Drop a finished operation; a node refers to a running one, so it stays. Raises ApiError (NOT_FOUND)."""
        with self.lock:
            if self.operation(name).ended is not None:
                del self._ledger.operations[name]
                self.save()


def units(record: NodeRecord | QueuedRecord) -> int:
    """Units of quota: the number in the type's name, for each node of a queued resource."""
    amount = instance_types.table()[record.accelerator_type].amount
    return amount * (len(record.nodes) if isinstance(record, QueuedRecord) else 1)


def in_location(location: str, asked: str) -> bool:
    """Whether a location matches a list request; the zone `-` means all zones of the project."""
    project, _, zone = asked.rpartition("/")
    return location == asked or (zone == "-" and location.startswith(project + "/"))


def _found(record: _Record | None, name: str) -> _Record:
    if record is None:
        raise ApiError(Code.NOT_FOUND, f"Resource '{name}' was not found")
    return record
