"""The emulated nodes: created, booted, watched, pre-empted, deleted, and adopted after a restart.

Speaks neither gRPC nor protobuf; `service.py` translates. Invariants:

* A request returns as soon as the ledger on disk says what will happen; booting and ending run in threads of their own.
  A disk that is full stops none of it: what could not be written is written as soon as there is room. A crash before
  that forgets those changes, which costs a node (its hosts are swept) or brings one back, to be deleted again.
* A node leaves the ledger only when no process of it is left.
* `TERMINATED` means that a host died under a ready node (its supervisor was killed, the machine rebooted). The real
  service keeps such a node READY or repairs it some time; here it is said at once, because a slice that lost a host is
  lost. Its other hosts go on until the node is deleted. Nothing is ever restarted.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core import instance_types
from bastion.emulator.tpu.faults import CreateFailure, Faults
from bastion.emulator.tpu.host import HostSpec
from bastion.emulator.tpu.hosts import AddressBlocks, Hosts
from bastion.emulator.tpu.records import ApiError, Code, HostRecord, Ledger, NodeRecord, NodeState, OperationRecord

_log = logging.getLogger(__name__)

_NODE_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LOCATION = re.compile(r"projects/(?P<project>[a-z0-9][-a-z0-9.:]{0,62})/locations/(?P<zone>[a-z0-9][-a-z0-9]{0,62})")
_METADATA_VALUE_MAX_BYTES = 256 * 1024
_METADATA_MAX_BYTES = 512 * 1024
# A block of loopback addresses ends there.
HOSTS_MAX = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How this machine plays Cloud TPU.

    Attributes:
        hosts_max: The largest node; a host costs about 0.3 s and 160 MB once JAX runs on it.
        grace_seconds: Between SIGTERM and SIGKILL when a node is deleted or pre-empted.
        orphan_seconds: How long hosts outlive an emulator that has no successor.
        watch_seconds: How often dead hosts and fault files are looked for.
    """

    state_dir: Path
    hosts_max: int = 16
    grace_seconds: float = 5.0
    orphan_seconds: float = 60.0
    watch_seconds: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNode:
    """What a creation asks for; `sent` as in `NodeRecord`."""

    location: str
    node_id: str
    accelerator_type: str
    runtime_version: str
    service_account: str
    metadata: dict[str, str]
    sent: str


@dataclass(slots=True)
class _Work:
    """What runs for one node in the background."""

    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Fleet:
    """All nodes of one emulator. Thread-safe."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._file = settings.state_dir / "state.json"
        self._hosts = Hosts(settings.state_dir)
        self._blocks = AddressBlocks()
        self.faults = Faults(settings.state_dir / "faults")
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._unsaved = False
        self._work: dict[str, _Work] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)

    # ---- the emulator's own life

    def open(self) -> None:
        """Takes over from the emulator before: adopts hosts that live, ends what should not, resumes the rest."""
        self._ledger = Ledger.load(self._file)
        self._hosts.sweep({node.key for node in self._ledger.nodes.values()})
        with self._lock:
            for node in list(self._ledger.nodes.values()):
                match node.state:
                    case NodeState.CREATING:
                        # Its creation was accepted, so it goes on; hosts of the first try, if any, are strangers now.
                        self._hosts.end(node.hosts, grace_seconds=0)
                        self._hosts.remove(node.key)
                        self._change(node.name, hosts=())
                        self._begin(node.name, self._boot)
                    case NodeState.DELETING:
                        self._begin(node.name, self._end)
                    case NodeState.PREEMPTED:
                        self._hosts.end(node.hosts, grace_seconds=0)
                    case NodeState.TERMINATED:
                        self._hosts.end([host for host in node.hosts if not host.alive], grace_seconds=0)
                    case NodeState.READY:
                        pass  # adopted; the watcher finds those that died meanwhile
            self._save()
        self._watcher.start()

    def close(self) -> None:
        """Ends all nodes and forgets them; returns when no process is left."""
        self._closed.set()
        with self._lock:
            for node in list(self._ledger.nodes.values()):
                if node.state is not NodeState.DELETING:
                    self.delete(node.name)
            threads = [work.thread for work in self._work.values() if work.thread is not None]
        for thread in threads:
            thread.join()
        if self._watcher.is_alive():
            self._watcher.join()
        self._hosts.reap()

    # ---- what the API asks

    def create(self, new: NewNode) -> OperationRecord:
        """Accepts a node; it boots in the background.

        Raises:
            ApiError: INVALID_ARGUMENT or ALREADY_EXISTS.
        """
        self._check(new)
        name = f"{new.location}/nodes/{new.node_id}"
        with self._lock:
            if name in self._ledger.nodes:
                raise ApiError(Code.ALREADY_EXISTS, f"Resource '{name}' already exists")
            operation = self._operation(new.location, name, "create")
            self._ledger.nodes[name] = NodeRecord(
                name=name,
                key=f"{new.node_id}-{uuid.uuid4().hex[:8]}",
                accelerator_type=new.accelerator_type,
                service_account=new.service_account,
                metadata=new.metadata,
                sent=new.sent,
                created=operation.created,
                create_operation=operation.name,
            )
            self._save()
            self._begin(name, self._boot)
            return operation

    def get(self, name: str) -> NodeRecord:
        """The node of that name.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            if name not in self._ledger.nodes:
                raise ApiError(Code.NOT_FOUND, f"Resource '{name}' was not found")
            return self._ledger.nodes[name]

    def nodes(self, location: str) -> list[NodeRecord]:
        """The nodes of a location in order of their names; the zone `-` means every zone of the project."""
        project, _, zone = location.rpartition("/")
        with self._lock:
            return [
                node
                for _, node in sorted(self._ledger.nodes.items())
                if node.location == location or (zone == "-" and node.location.startswith(project + "/"))
            ]

    def delete(self, name: str) -> OperationRecord:
        """Accepts the end of a node; one that is being deleted gets the same operation again.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            node = self.get(name)
            if node.state is NodeState.DELETING:
                return self._ledger.operations[node.delete_operation]
            self._finish(node.create_operation, Code.CANCELLED, "the node was deleted while it was being created")
            operation = self._operation(node.location, name, "delete")
            self._change(name, state=NodeState.DELETING, delete_operation=operation.name)
            self._save()
            self._begin(name, self._end)
            return operation

    def preempt(self, name: str) -> None:
        """Takes the node away as the real service does: told to the hosts, then ended; the node stays until deleted.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            node = self.get(name)
            if node.state is not NodeState.READY:
                return
            self._change(name, state=NodeState.PREEMPTED, health_description="The TPU was preempted.")
            self._save()
        _log.info("node %s is pre-empted", name)
        for host in node.hosts:
            with contextlib.suppress(OSError):
                self._hosts.folder(node.key, host.worker).preempted.touch()
        grace = self._settings.grace_seconds
        threading.Thread(target=self._hosts.end, args=(node.hosts,), kwargs={"grace_seconds": grace}).start()

    def operation(self, name: str) -> OperationRecord:
        """The operation of that name.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            if name not in self._ledger.operations:
                raise ApiError(Code.NOT_FOUND, f"Operation '{name}' was not found")
            return self._ledger.operations[name]

    def operations(self, location: str) -> list[OperationRecord]:
        """The operations of a location in order of their names, which is the order of their beginning."""
        with self._lock:
            prefix = f"{location}/operations/"
            return [found for name, found in sorted(self._ledger.operations.items()) if name.startswith(prefix)]

    def cancel(self, name: str) -> None:
        """Notes the wish; as the API says, cancelling is best effort, and here nothing comes of it."""
        with self._lock:
            self._ledger.operations[name] = self.operation(name).model_copy(update={"cancel_requested": True})
            self._save()

    def forget(self, name: str) -> None:
        """Drops a finished operation; one that runs is kept, because its node still speaks of it."""
        with self._lock:
            if self.operation(name).ended is not None:
                del self._ledger.operations[name]
                self._save()

    # ---- in the background

    def _boot(self, name: str, stop: threading.Event) -> None:
        node = self.get(name)
        kind = instance_types.table()[node.accelerator_type]
        zone = node.location.rpartition("/")[2]
        if stop.wait(self.faults.create_delay_seconds()):
            return None
        if (failure := self.faults.take_create_failure(zone)) is not None:
            return self._fail(name, failure)
        try:
            listeners = self._blocks.take(kind.hosts)
        except OSError as error:
            return self._fail(name, CreateFailure(code=Code.RESOURCE_EXHAUSTED, message=str(error)))
        places = [listener.getsockname()[:2] for listener in listeners]
        hosts = tuple(
            HostRecord(worker=worker, vm_id=f"{node.key}-{worker}", ip=ip, port=port)
            for worker, (ip, port) in enumerate(places)
        )
        with self._lock:
            self._change(name, hosts=hosts)
            self._save()
        started = []
        try:
            for host, listener in zip(hosts, listeners, strict=True):
                process = self._hosts.start(node.key, self._spec(node, host, hosts), listener)
                started.append(host.model_copy(update={"process": str(process)}))
        except OSError as error:
            for listener in listeners:
                listener.close()
            self._hosts.end([*started, *hosts[len(started) :]], grace_seconds=0)
            return self._fail(name, CreateFailure(code=Code.INTERNAL, message=f"a host could not be started: {error}"))
        with self._lock:
            self._change(name, hosts=tuple(started))
            if self._ledger.nodes[name].state is NodeState.CREATING:
                self._change(name, state=NodeState.READY)
                self._finish(node.create_operation)
                _log.info("node %s is ready with %d hosts", name, len(started))
            self._save()
        return None

    def _fail(self, name: str, failure: CreateFailure) -> None:
        """A creation that fails leaves no node, only its operation's error."""
        with self._lock:
            node = self._ledger.nodes[name]
            if node.state is NodeState.CREATING:
                self._hosts.remove(node.key)
                del self._ledger.nodes[name]
                self._finish(node.create_operation, failure.code, failure.message)
                self._save()
        _log.info("node %s was not created: %s", name, failure.message)

    def _end(self, name: str, _stop: threading.Event) -> None:
        node = self.get(name)
        grace = self._settings.grace_seconds
        while not self._hosts.end(node.hosts, grace_seconds=grace):
            _log.error("processes of node %s do not die; trying again", name)
            time.sleep(1.0)
            grace = 0
        self._hosts.remove(node.key)
        with self._lock:
            del self._ledger.nodes[name]
            self._finish(node.delete_operation)
            self._save()
        _log.info("node %s is gone", name)

    def _watch(self) -> None:
        while not self._closed.wait(self._settings.watch_seconds):
            try:
                self._look()
            except OSError as error:  # noqa: PERF203 - of a fault file; the hosts must be watched on
                _log.warning("a look at the nodes was cut short: %s", error)

    def _look(self) -> None:
        self._hosts.reap()
        with self._lock:
            if self._unsaved:
                self._save()
            ready = [node for node in self._ledger.nodes.values() if node.state is NodeState.READY]
        for node in ready:
            dead = [host for host in node.hosts if not host.alive]
            if dead:
                self._terminate(node, dead)
        for node_id in self.faults.preemptions():
            with self._lock:
                ready = [n for n in self._ledger.nodes.values() if n.node_id == node_id and n.state is NodeState.READY]
            for node in ready:
                self.faults.preempted(node_id)
                self.preempt(node.name)

    def _terminate(self, node: NodeRecord, dead: list[HostRecord]) -> None:
        workers = ", ".join(str(host.worker) for host in dead)
        with self._lock:
            current = self._ledger.nodes.get(node.name)
            if current is None or current.key != node.key or current.state is not NodeState.READY:
                return
            description = f"worker {workers} of {len(node.hosts)} died: its supervisor process is gone"
            self._change(node.name, state=NodeState.TERMINATED, health_description=description)
            self._save()
        _log.warning("node %s lost a host: %s", node.name, description)
        threading.Thread(target=self._hosts.end, args=(dead,), kwargs={"grace_seconds": 0.0}).start()

    # ---- the ledger

    def _begin(self, name: str, task: Callable[[str, threading.Event], None]) -> None:
        """Runs a task for a node after the one before has stopped."""
        before = self._work.get(name)
        work = _Work()

        def run() -> None:
            if before is not None and before.thread is not None:
                before.stop.set()
                before.thread.join()
            task(name, work.stop)
            with self._lock:
                if self._work.get(name) is work:
                    del self._work[name]

        work.thread = threading.Thread(target=run, name=f"{task.__name__} {name}")
        self._work[name] = work
        if before is not None:
            before.stop.set()
        work.thread.start()

    def _check(self, new: NewNode) -> None:
        kind = instance_types.table().get(new.accelerator_type)
        location = _LOCATION.fullmatch(new.location)
        size = sum(len(name.encode()) + len(value.encode()) for name, value in new.metadata.items())
        if location is None:
            raise ApiError(Code.INVALID_ARGUMENT, f"'{new.location}' is not projects/PROJECT/locations/ZONE")
        if not _NODE_ID.fullmatch(new.node_id):
            raise ApiError(Code.INVALID_ARGUMENT, f"'{new.node_id}' is not a node id; it must match {_NODE_ID.pattern}")
        if kind is None or not kind.served:
            valid = ", ".join(kind.accelerator_type for kind in instance_types.table().values() if kind.served)
            raise ApiError(
                Code.INVALID_ARGUMENT,
                f'CloudTpu received an invalid AcceleratorType "{new.accelerator_type}" for zone '
                f'"{location["zone"]}". Valid values are: {valid}',
            )
        if not new.runtime_version:
            raise ApiError(Code.INVALID_ARGUMENT, "runtime_version is required")
        if size > _METADATA_MAX_BYTES or any(
            len(value.encode()) > _METADATA_VALUE_MAX_BYTES for value in new.metadata.values()
        ):
            raise ApiError(
                Code.INVALID_ARGUMENT,
                f"metadata is too large: {size} bytes; a value may have {_METADATA_VALUE_MAX_BYTES} and all together "
                f"{_METADATA_MAX_BYTES}",
            )
        if kind.hosts > self._settings.hosts_max:
            raise ApiError(
                Code.INVALID_ARGUMENT,
                f"{new.accelerator_type} has {kind.hosts} hosts, and this machine emulates at most "
                f"{self._settings.hosts_max} of one node (each takes about 0.3 s and 160 MB under JAX); choose a "
                f"smaller type, or set BASTION_EMULATOR_HOSTS_MAX={kind.hosts} and start the emulator anew: "
                "bastion local down, bastion local up",
            )

    def _spec(self, node: NodeRecord, host: HostRecord, hosts: tuple[HostRecord, ...]) -> HostSpec:
        location = _LOCATION.fullmatch(node.location)
        assert location is not None, node.location
        return HostSpec(
            vm_id=host.vm_id,
            node_id=node.node_id,
            project=location["project"],
            zone=location["zone"],
            worker=host.worker,
            addresses=tuple(other.ip for other in hosts),
            port=host.port,
            accelerator_type=node.accelerator_type,
            topology=instance_types.table()[node.accelerator_type].topology,
            service_account=node.service_account or f"default@{location['project']}.iam.gserviceaccount.com",
            metadata=node.metadata,
            state_dir=str(self._settings.state_dir),
            orphan_seconds=self._settings.orphan_seconds,
            grace_seconds=self._settings.grace_seconds,
        )

    def _operation(self, location: str, target: str, verb: str) -> OperationRecord:
        now = time.time()
        # Names in the order of time, so that listing by name is listing by age.
        name = f"{location}/operations/operation-{int(now * 1e6):016d}-{uuid.uuid4().hex[:8]}"
        operation = OperationRecord(name=name, target=target, verb=verb, created=now)
        self._ledger.operations[name] = operation
        return operation

    def _finish(self, operation: str, code: int = 0, message: str = "") -> None:
        found = self._ledger.operations.get(operation)
        if found is not None and found.ended is None:
            self._ledger.operations[operation] = found.finished(code, message)

    def _change(self, name: str, **fields: object) -> None:
        self._ledger.nodes[name] = self._ledger.nodes[name].model_copy(update=fields)

    def _save(self) -> None:
        try:
            self._ledger.save(self._file)
        except OSError as error:
            if not self._unsaved:
                _log.error("%s could not be written, which is tried again until it can be: %s", self._file, error)
            self._unsaved = True
        else:
            self._unsaved = False
