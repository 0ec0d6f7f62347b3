"""The emulator's persistent state in one file, `state.json`: nodes, queued resources and operations.

The file is replaced atomically, so that a node and its operation agree after a crash. Only this user can read it,
because it contains startup scripts and run tokens. Long metadata values are stored once: the file is written at every
change, and all nodes have the same startup script.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import uuid
from enum import IntEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core.errors import BastionError
from bastion.emulators.state_folder import write_private
from bastion.processes import ProcessId, host_identity

_log = logging.getLogger(__name__)

# Finished operations are kept for a while, as in the real service.
_FINISHED_OPERATIONS_MAX = 500
# Format 1 had no queued resources and no shared texts; it is still readable.
_FORMAT = 2
_LONG_TEXT = 512


class ApiError(BastionError):
    """An error of the API: a google.rpc.Code and a message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Code(IntEnum):
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class NodeState(IntEnum):
    CREATING = 1
    READY = 2
    RESTARTING = 3
    DELETING = 5
    REPAIRING = 6
    PREEMPTED = 11
    TERMINATED = 12


# States in which a node's hosts are being made.
BOOTING = frozenset({NodeState.CREATING, NodeState.RESTARTING, NodeState.REPAIRING})


class QueuedState(IntEnum):
    """The states of google.cloud.tpu.v2.QueuedResourceState.State that the emulator uses."""

    ACCEPTED = 2
    PROVISIONING = 3
    FAILED = 4
    DELETING = 5
    ACTIVE = 6
    SUSPENDING = 7
    SUSPENDED = 8
    WAITING_FOR_RESOURCES = 9


class Initiator(IntEnum):
    """google.cloud.tpu.v2.QueuedResourceState.StateInitiator: who started a suspension."""

    NOBODY = 0
    USER = 1
    SERVICE = 2


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostRecord(_Record):
    """One host. Its id is on disk before its process exists, so that a crash leaves no unknown process."""

    worker: int
    vm_id: str = Field(min_length=1)
    ip: str
    port: int
    process: str = ""

    @property
    def supervisor(self) -> ProcessId | None:
        return ProcessId.parse(self.process)

    @property
    def alive(self) -> bool:
        supervisor = self.supervisor
        return supervisor is not None and supervisor.alive


class NodeRecord(_Record):
    """One node.

    Attributes:
        name: `projects/P/locations/Z/nodes/ID`.
        key: Unique in time; names its folder under `vms/` and its hosts.
        sent: The creator's Node message without metadata, in base64.
        health_description: Why it is unhealthy; empty if healthy.
        create_operation: Empty for a node of a queued resource; so is `delete_operation`.
        queued: Name of the queued resource that made it, or empty.
        placed: Whether it holds capacity of its zone.
        hangs: Whether its creation never ends.
        boots: How often its hosts were made.
        taken_at: When its hosts end; set with their notice. `taken_as` is its state from then on.
        unwatched: Whether it stays READY with a dead host.
    """

    name: str
    key: str
    accelerator_type: str
    service_account: str
    metadata: dict[str, str]
    sent: str
    created: float
    create_operation: str
    delete_operation: str = ""
    state: NodeState = NodeState.CREATING
    health_description: str = ""
    hosts: tuple[HostRecord, ...] = ()
    queued: str = ""
    slice_index: int = 0
    slices: int = 1
    spot: bool = False
    reserved: bool = False
    placed: bool = True
    hangs: bool = False
    boots: int = 1
    ready_at: float | None = None
    taken_at: float | None = None
    taken_as: NodeState = NodeState.PREEMPTED
    unwatched: bool = False

    @staticmethod
    def of_queued(queued: QueuedRecord, index: int, now: float) -> NodeRecord:
        """The node of one slice of a queued resource that is being provisioned."""
        name = queued.nodes[index]
        return NodeRecord(
            name=name,
            key=new_key(name),
            accelerator_type=queued.accelerator_type,
            service_account=queued.service_account,
            metadata=queued.metadata,
            sent=queued.node_sent,
            created=now,
            create_operation="",
            queued=queued.name,
            slice_index=index,
            slices=len(queued.nodes),
            spot=queued.spot,
            reserved=queued.reserved,
        )

    @property
    def node_id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def location(self) -> str:
        return self.name.partition("/nodes/")[0]


def new_key(name: str) -> str:
    """A unique key for a node of that name."""
    return f"{name.rpartition('/')[2]}-{uuid.uuid4().hex[:8]}"


class QueuedRecord(_Record):
    """One queued resource.

    Attributes:
        name: `projects/P/locations/Z/queuedResources/ID`.
        nodes: Names of its nodes, by slice.
        metadata: Of every node.
        sent, node_sent: The creator's QueuedResource message without metadata, and the Node message in it; in base64.
        since: When it entered its state.
        valid_after, valid_until: When provisioning may start; None: any time.
        initiator: Who suspended it.
        error_code, error_message: Why it is FAILED.
    """

    name: str
    nodes: tuple[str, ...] = Field(min_length=1)
    accelerator_type: str
    service_account: str
    metadata: dict[str, str]
    sent: str
    node_sent: str
    created: float
    since: float
    create_operation: str
    delete_operation: str = ""
    reset_operation: str = ""
    spot: bool = False
    reserved: bool = False
    valid_after: float | None = None
    valid_until: float | None = None
    state: QueuedState = QueuedState.ACCEPTED
    initiator: Initiator = Initiator.NOBODY
    error_code: int = 0
    error_message: str = ""

    @property
    def queued_id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def location(self) -> str:
        return self.name.partition("/queuedResources/")[0]


class OperationRecord(_Record):
    """One long-running operation; done once `ended` is set, failed if `error_code` is not 0."""

    name: str
    target: str
    verb: str
    created: float
    ended: float | None = None
    error_code: int = 0
    error_message: str = ""
    cancel_requested: bool = False

    def finished(self, code: int = 0, message: str = "") -> OperationRecord:
        return self.model_copy(update={"ended": time.time(), "error_code": code, "error_message": message})


class Ledger(BaseModel):
    """The whole state. Mutable; `ledger.OpenLedger` guards it."""

    model_config = ConfigDict(extra="forbid")

    format: int = Field(default=_FORMAT, ge=1, le=_FORMAT)
    # Process ids mean nothing after a reboot or in another container.
    machine: str = ""
    nodes: dict[str, NodeRecord] = Field(default_factory=dict)
    queued: dict[str, QueuedRecord] = Field(default_factory=dict)
    operations: dict[str, OperationRecord] = Field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Ledger:
        """The ledger of the last run; empty if missing or unreadable (then it is moved aside)."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Ledger(machine=host_identity())
        try:
            ledger = Ledger.model_validate(_with_texts(json.loads(data)))
        except (ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
            aside = path.with_name(path.name + ".unreadable")
            path.replace(aside)
            _log.error("cannot read %s; moved it to %s and ending every VM in it (%s)", path, aside, error)
            return Ledger(machine=host_identity())
        if ledger.machine != host_identity():
            for name, node in ledger.nodes.items():
                dead = tuple(host.model_copy(update={"process": ""}) for host in node.hosts)
                ledger.nodes[name] = node.model_copy(update={"hosts": dead})
            ledger.machine = host_identity()
        return ledger

    def save(self, path: Path) -> None:
        finished = [name for name, operation in self.operations.items() if operation.ended is not None]
        for name in finished[:-_FINISHED_OPERATIONS_MAX]:
            del self.operations[name]
        self.format = _FORMAT
        write_private(path, json.dumps(_without_texts(self.model_dump(mode="json"))).encode())


def _without_texts(document: dict[str, Any]) -> dict[str, Any]:
    """Move long metadata values to `texts`, by their hash."""
    texts: dict[str, str] = {}
    for record in (*document["nodes"].values(), *document["queued"].values()):
        long = {key: value for key, value in record["metadata"].items() if len(value) > _LONG_TEXT}
        record["texts"] = {key: hashlib.sha256(value.encode()).hexdigest() for key, value in long.items()}
        record["metadata"] = {key: value for key, value in record["metadata"].items() if key not in long}
        texts.update({record["texts"][key]: value for key, value in long.items()})
    return {**document, "texts": texts}


def _with_texts(document: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `_without_texts`; format 1 stays unchanged."""
    texts = document.pop("texts", {})
    for record in (*document.get("nodes", {}).values(), *document.get("queued", {}).values()):
        record["metadata"].update({key: texts[digest] for key, digest in record.pop("texts", {}).items()})
    return document
