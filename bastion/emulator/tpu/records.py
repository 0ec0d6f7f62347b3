"""What the emulator remembers across a restart: nodes, operations and its port, in one file `state.json`.

One file, replaced atomically, so that a node and the operation that speaks of it never disagree after a crash. It
holds startup scripts and run tokens and is readable by this user only.
"""

from __future__ import annotations

import logging
import time
from enum import IntEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core.errors import BastionError
from bastion.emulator.state_folder import write_private
from bastion.processes import ProcessId, host_identity

_log = logging.getLogger(__name__)

# Finished operations that are kept for whoever asks; the real service keeps them for a while, too.
_FINISHED_OPERATIONS_MAX = 500


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
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class NodeState(IntEnum):
    """google.cloud.tpu.v2.Node.State, as far as a node of the emulator gets into it."""

    CREATING = 1
    READY = 2
    DELETING = 5
    PREEMPTED = 11
    TERMINATED = 12


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

    @property
    def node_id(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def location(self) -> str:
        return self.name.partition("/nodes/")[0]


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
    """Everything that is remembered. Mutable, owned by the fleet and only touched under its lock."""

    model_config = ConfigDict(extra="forbid")

    format: int = 1
    # Process ids mean nothing on another boot of this machine or in another container.
    machine: str = ""
    nodes: dict[str, NodeRecord] = Field(default_factory=dict)
    operations: dict[str, OperationRecord] = Field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Ledger:
        """The ledger of the last run; an empty one if there is none, or if it cannot be read (it is put aside)."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Ledger(machine=host_identity())
        try:
            ledger = Ledger.model_validate_json(data)
        except ValidationError as error:
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
        write_private(path, self.model_dump_json().encode())
