"""What the emulator remembers across a restart: nodes, queued resources and operations, in one file `state.json`.

One file, replaced atomically, so that a node and the operation that speaks of it never disagree after a crash. It
holds startup scripts and run tokens and is readable by this user only. A long metadata value (a startup script) is
written once, whoever has it: the file is written at every change, and all nodes have the same script.
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

# Finished operations that are kept for whoever asks; the real service keeps them for a while, too.
_FINISHED_OPERATIONS_MAX = 500
# Format 1 knew neither queued resources nor shared texts; it is still read.
_FORMAT = 2
_LONG_TEXT = 512


class ApiError(BastionError):
    """The API's refusal of a request: a code of google.rpc.Code and its words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Code(IntEnum):
    """google.rpc.Code, as far as the emulator uses it."""

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
    """google.cloud.tpu.v2.Node.State, as far as a node of the emulator gets into it."""

    CREATING = 1
    READY = 2
    RESTARTING = 3
    DELETING = 5
    REPAIRING = 6
    PREEMPTED = 11
    TERMINATED = 12


# A node in one of these has hosts that are being made.
BOOTING = frozenset({NodeState.CREATING, NodeState.RESTARTING, NodeState.REPAIRING})


class QueuedState(IntEnum):
    """google.cloud.tpu.v2.QueuedResourceState.State, as far as a queued resource of the emulator gets into it."""

    ACCEPTED = 2
    PROVISIONING = 3
    FAILED = 4
    DELETING = 5
    ACTIVE = 6
    SUSPENDING = 7
    SUSPENDED = 8
    WAITING_FOR_RESOURCES = 9


class Initiator(IntEnum):
    """google.cloud.tpu.v2.QueuedResourceState.StateInitiator: who began a suspension."""

    NOBODY = 0
    USER = 1
    SERVICE = 2


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostRecord(_Record):
    """One host. Its id is on disk before its process exists, so that a crash between the two leaves nothing unknown."""

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
        sent: The Node message as its creator sent it, without metadata, in base64.
        health_description: Why it is unhealthy; empty while it is healthy.
        create_operation: Empty for a node of a queued resource; so is `delete_operation`.
        queued: Name of the queued resource that made it; empty for a node of its own.
        slice_index, slices: Its place in a multislice.
        placed: Whether it has been given a part of its zone's capacity.
        hangs: Whether its creation never ends.
        boots: How often its hosts were made.
        ready_at: When it became READY.
        taken_at: When its hosts end; set from the moment that they are told. `taken_as` is its state from then on.
        unwatched: Whether it stays READY though a host is dead.
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
    """A key for a node of that name."""
    return f"{name.rpartition('/')[2]}-{uuid.uuid4().hex[:8]}"


class QueuedRecord(_Record):
    """One queued resource.

    Attributes:
        name: `projects/P/locations/Z/queuedResources/ID`.
        nodes: Names of the nodes it makes, by slice.
        metadata: Of each node; one for all.
        sent: The QueuedResource message as its creator sent it, without metadata, in base64.
        node_sent: The Node message in it, likewise.
        since: When it got into its state.
        valid_after, valid_until: When it may begin to be provisioned; None for any time.
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
    """One long-running operation; it is done once `ended` is set, and failed if `error_code` is not 0."""

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
    """Everything that is remembered. Mutable; `ledger.OpenLedger` guards it."""

    model_config = ConfigDict(extra="forbid")

    format: int = Field(default=_FORMAT, ge=1, le=_FORMAT)
    # Process ids mean nothing on another boot of this machine or in another container.
    machine: str = ""
    nodes: dict[str, NodeRecord] = Field(default_factory=dict)
    queued: dict[str, QueuedRecord] = Field(default_factory=dict)
    operations: dict[str, OperationRecord] = Field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Ledger:
        """The ledger of the last run; an empty one if there is none, or if it cannot be read (it is put aside)."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Ledger(machine=host_identity())
        try:
            ledger = Ledger.model_validate(_with_texts(json.loads(data)))
        except (ValidationError, ValueError, LookupError, TypeError, AttributeError) as error:
            aside = path.with_name(path.name + ".unreadable")
            path.replace(aside)
            _log.error("%s cannot be read and was moved to %s; every VM in it is ended (%s)", path, aside, error)
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
    """Moves long metadata values to `texts`, by their hash."""
    texts: dict[str, str] = {}
    for record in (*document["nodes"].values(), *document["queued"].values()):
        long = {key: value for key, value in record["metadata"].items() if len(value) > _LONG_TEXT}
        record["texts"] = {key: hashlib.sha256(value.encode()).hexdigest() for key, value in long.items()}
        record["metadata"] = {key: value for key, value in record["metadata"].items() if key not in long}
        texts.update({record["texts"][key]: value for key, value in long.items()})
    return {**document, "texts": texts}


def _with_texts(document: dict[str, Any]) -> dict[str, Any]:
    """Undoes `_without_texts`; a document of format 1 stays as it is."""
    texts = document.pop("texts", {})
    for record in (*document.get("nodes", {}).values(), *document.get("queued", {}).values()):
        record["metadata"].update({key: texts[digest] for key, digest in record.pop("texts", {}).items()})
    return document
