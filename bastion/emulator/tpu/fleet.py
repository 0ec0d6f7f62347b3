"""The emulated nodes: created, booted, watched, pre-empted, deleted, and adopted after a restart.

Speaks neither gRPC nor protobuf; `service.py` translates. Invariants:

* A request returns as soon as the ledger on disk says what will happen; booting and ending run in threads of their own.
* A node leaves the ledger only when no process of it is left.
* `TERMINATED` means that a host died under a ready node (its supervisor was killed, the machine rebooted). The real
  service keeps such a node READY or repairs it some time; here it is said at once, because a slice that lost a host is
  lost. Its other hosts go on until the node is deleted.
* Nothing is ever restarted but by a reset of its queued resource.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core import instance_types
from bastion.emulator.tpu.capacity import Capacity
from bastion.emulator.tpu.faults import CreateFailure, Faults, stockout
from bastion.emulator.tpu.host import HostSpec
from bastion.emulator.tpu.hosts import AddressBlocks, Hosts
from bastion.emulator.tpu.ledger import OpenLedger, in_location
from bastion.emulator.tpu.queue import Queue
from bastion.emulator.tpu.records import (
    ApiError,
    Code,
    HostRecord,
    Initiator,
    NodeRecord,
    NodeState,
    OperationRecord,
    QueuedState,
    new_key,
)
from bastion.emulator.tpu.requests import LOCATION, NewNode, check_node

_log = logging.getLogger(__name__)

# A block of loopback addresses ends there.
HOSTS_MAX = 250
# Of slice 0's first host, for the hosts of all slices; the port is the one that Cloud TPU's launchers use.
_MEGASCALE_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How this machine plays Cloud TPU.

    Attributes:
        hosts_max: The largest node; a host costs about 0.3 s and 160 MB once JAX runs on it.
        grace_seconds: Between SIGTERM and SIGKILL when a node is deleted or pre-empted.
        orphan_seconds: How long hosts outlive an emulator that has no successor.
        watch_seconds: How often dead hosts and fault files are looked for.
        create_seconds: How long every creation of a node takes before its hosts boot.
        wait_seconds: How long every queued resource waits for resources at least.
        notice_seconds: Between the hosts' notice of a pre-emption and their end.
        boot: Whether nodes have hosts at all; without, they are READY and nothing runs.
        exists, quota: As in `Capacity`.
    """

    state_dir: Path
    hosts_max: int = 16
    grace_seconds: float = 5.0
    orphan_seconds: float = 60.0
    watch_seconds: float = 0.25
    create_seconds: float = 0.0
    wait_seconds: float = 0.0
    notice_seconds: float = 0.0
    boot: bool = True
    exists: Mapping[tuple[str, str], int] = field(default_factory=dict)
    quota: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class _Work:
    """What runs for one node in the background."""

    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Fleet:
    """All nodes of one emulator. Thread-safe."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._hosts = Hosts(settings.state_dir)
        self._blocks = AddressBlocks()
        self.faults = Faults(settings.state_dir / "faults")
        self.ledger = OpenLedger(settings.state_dir)
        self._lock = self.ledger.lock
        self.capacity = Capacity(self.ledger, dict(settings.exists), dict(settings.quota))
        self.queue = Queue(
            self.ledger, self.capacity, self, hosts_max=settings.hosts_max, wait_seconds=settings.wait_seconds
        )
        self._work: dict[str, _Work] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)

    # ---- the emulator's own life

    def open(self) -> None:
        """Takes over from the emulator before: adopts hosts that live, ends what should not, resumes the rest."""
        self.ledger.load()
        self._hosts.sweep({node.key for node in self.ledger.nodes})
        with self._lock:
            for node in self.ledger.nodes:
                match node.state:
                    case NodeState.CREATING | NodeState.RESTARTING:
                        # Its creation was accepted, so it goes on; hosts of the first try, if any, are strangers now.
                        self.reboot(node.name)
                    case NodeState.DELETING:
                        self._begin(node.name, self._end)
                    case NodeState.PREEMPTED:
                        self._hosts.end(node.hosts, grace_seconds=0)
                    case NodeState.TERMINATED:
                        self._hosts.end([host for host in node.hosts if not host.alive], grace_seconds=0)
                    case NodeState.READY:
                        self._adopt(node)
            self.ledger.save()
        self._watcher.start()

    def close(self) -> None:
        """Ends all nodes and queued resources and forgets them; returns when no process is left."""
        self._closed.set()
        self.ledger.changed.set()
        with self._lock:
            self.queue.delete_all()
            for node in self.ledger.nodes:
                if node.state is not NodeState.DELETING:
                    self._delete(node)
            self.ledger.save()
            threads = [work.thread for work in self._work.values() if work.thread is not None]
        for thread in threads:
            thread.join()
        if self._watcher.is_alive():
            self._watcher.join()
        self.queue.step()
        self._hosts.reap()

    # ---- what the API asks

    def create(self, new: NewNode) -> OperationRecord:
        """Accepts a node; it boots in the background.

        Raises:
            ApiError: INVALID_ARGUMENT, ALREADY_EXISTS or RESOURCE_EXHAUSTED.
        """
        check_node(new, hosts_max=self._settings.hosts_max)
        with self._lock:
            if self.ledger.find_node(new.name) is not None:
                raise ApiError(Code.ALREADY_EXISTS, f"Resource '{new.name}' already exists")
            self.capacity.require_quota(new.location, new.accelerator_type, 1, spot=new.spot)
            operation = self.ledger.begin(new.location, new.name, "create")
            self.ledger.add_node(
                NodeRecord(
                    name=new.name,
                    key=new_key(new.name),
                    accelerator_type=new.accelerator_type,
                    service_account=new.service_account,
                    metadata=new.metadata,
                    sent=new.sent,
                    created=operation.created,
                    create_operation=operation.name,
                    spot=new.spot,
                    reserved=new.reserved,
                    placed=False,
                )
            )
            self.ledger.save()
            self.boot(new.name)
            return operation

    def get(self, name: str) -> NodeRecord:
        """The node of that name.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            return self.ledger.node(name)

    def nodes(self, location: str) -> list[NodeRecord]:
        """The nodes of a location in order of their names; the zone `-` means every zone of the project."""
        found = [node for node in self.ledger.nodes if in_location(node.location, location)]
        return sorted(found, key=lambda node: node.name)

    def delete(self, name: str) -> OperationRecord:
        """Accepts the end of a node; one that is being deleted gets the same operation again.

        The only node of a queued resource takes that with it: it is SUSPENDED when the node is gone.

        Raises:
            ApiError: NOT_FOUND; FAILED_PRECONDITION: its queued resource needs it.
        """
        with self._lock:
            node = self.ledger.node(name)
            if node.state is NodeState.DELETING and node.delete_operation:
                return self.ledger.operation(node.delete_operation)
            self.queue.check_node_delete(node)
            operation = self._delete(node)
            if node.queued:
                self.ledger.suspend_queued(node.queued, Initiator.USER)
            self.ledger.save()
            return operation

    def preempt(self, name: str) -> None:
        """Takes the node away as the real service does: told to the hosts, then ended; the node stays until deleted.

        All nodes of a queued resource go together; it is SUSPENDING from the notice on, and SUSPENDED at the end.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._lock:
            node = self.ledger.node(name)
            if not self._can_be_preempted(node):
                return
            taken = [node]
            if node.queued:
                taken = self.ledger.nodes_of(self.ledger.queued(node.queued))
                self.ledger.suspend_queued(node.queued, Initiator.SERVICE)
            for each in taken:
                self.ledger.change_node(each.name, preempt_at=time.time() + self._settings.notice_seconds)
            self.ledger.save()
        for each in taken:
            _log.info("node %s will be pre-empted in %g s", each.name, self._settings.notice_seconds)
            for host in each.hosts:
                with contextlib.suppress(OSError):
                    self._hosts.folder(each.key, host.worker).preempted.touch()
        self._take_due()

    # ---- what the queue asks

    def boot(self, name: str) -> None:
        self._begin(name, self._boot)

    def reboot(self, name: str) -> None:
        old = self.ledger.node(name)
        # A new key: hosts of the old one are strangers from now on, also to the sweep after a crash.
        self.ledger.change_node(name, key=new_key(name), hosts=(), preempt_at=None)

        def boot_anew(name: str, stop: threading.Event) -> None:
            self._hosts.end(old.hosts, grace_seconds=0)
            self._hosts.remove(old.key)
            self._boot(name, stop)

        self._begin(name, boot_anew)

    def end(self, name: str) -> None:
        node = self.ledger.node(name)
        if node.state is not NodeState.DELETING:
            self.ledger.change_node(name, state=NodeState.DELETING)
            self._begin(name, self._end)

    # ---- in the background

    def _boot(self, name: str, stop: threading.Event) -> None:
        zone = name.partition("/nodes/")[0].rpartition("/")[2]
        with self._lock:
            node = self.ledger.node(name)
            if not node.placed and not self.capacity.fits(node.location, node.accelerator_type, 1):
                return self._fail(name, stockout(zone))
            node = self.ledger.change_node(name, placed=True)
        if stop.wait(self._settings.create_seconds + self.faults.create_delay_seconds()):
            return None
        if (failure := self.faults.take_create_failure(zone)) is not None:
            return self._fail(name, failure)
        if not self._settings.boot:
            return self._ready(name, ())
        try:
            listeners = self._blocks.take(instance_types.table()[node.accelerator_type].hosts)
        except OSError as error:
            return self._fail(name, CreateFailure(code=Code.RESOURCE_EXHAUSTED, message=str(error)))
        places = [listener.getsockname()[:2] for listener in listeners]
        hosts = tuple(
            HostRecord(worker=worker, vm_id=f"{node.key}-{worker}", ip=ip, port=port)
            for worker, (ip, port) in enumerate(places)
        )
        with self._lock:
            self.ledger.change_node(name, hosts=hosts)
            self.ledger.save()
        started = []
        coordinator = self._coordinator(node, stop)
        try:
            for host, listener in zip(hosts, listeners, strict=True):
                process = self._hosts.start(node.key, self._spec(node, host, hosts, coordinator), listener)
                started.append(host.model_copy(update={"process": str(process)}))
        except OSError as error:
            for listener in listeners:
                listener.close()
            self._hosts.end([*started, *hosts[len(started) :]], grace_seconds=0)
            return self._fail(name, CreateFailure(code=Code.INTERNAL, message=f"a host could not be started: {error}"))
        return self._ready(name, tuple(started))

    def _ready(self, name: str, hosts: tuple[HostRecord, ...]) -> None:
        with self._lock:
            node = self.ledger.change_node(name, hosts=hosts)
            if node.state in (NodeState.CREATING, NodeState.RESTARTING):
                self.ledger.change_node(name, state=NodeState.READY)
                self.ledger.finish(node.create_operation)
                _log.info("node %s is ready with %d hosts", name, len(hosts))
            self.ledger.save()

    def _coordinator(self, node: NodeRecord, stop: threading.Event) -> str:
        """Where slice 0's first host is, as soon as that is known; empty for a node that is no part of a multislice."""
        if node.slices == 1:
            return ""
        while not stop.is_set():
            with self._lock:
                queued = self.ledger.find_queued(node.queued)
                first = self.ledger.find_node(queued.nodes[0]) if queued is not None else None
            if first is not None and first.hosts:
                return f"{first.hosts[0].ip}:{_MEGASCALE_PORT}"
            stop.wait(0.01)
        return ""  # the node is being ended

    def _fail(self, name: str, failure: CreateFailure) -> None:
        """A creation that fails leaves no node, only its operation's error, or its queued resource's."""
        with self._lock:
            node = self.ledger.node(name)
            if node.state in (NodeState.CREATING, NodeState.RESTARTING):
                self._hosts.remove(node.key)
                self.ledger.drop_node(name)
                self.ledger.finish(node.create_operation, failure.code, failure.message)
                if node.queued:
                    self.queue.fail(node.queued, failure.code, failure.message)
                self.ledger.save()
        _log.info("node %s was not created: %s", name, failure.message)

    def _delete(self, node: NodeRecord) -> OperationRecord:
        self.ledger.finish(node.create_operation, Code.CANCELLED, "the node was deleted while it was being created")
        operation = self.ledger.begin(node.location, node.name, "delete")
        ending = node.state is NodeState.DELETING
        self.ledger.change_node(node.name, state=NodeState.DELETING, delete_operation=operation.name)
        if not ending:
            self._begin(node.name, self._end)
        return operation

    def _end(self, name: str, _stop: threading.Event) -> None:
        node = self.get(name)
        grace = self._settings.grace_seconds
        while not self._hosts.end(node.hosts, grace_seconds=grace):
            _log.error("processes of node %s do not die; trying again", name)
            time.sleep(1.0)
            grace = 0
        self._hosts.remove(node.key)
        with self._lock:
            self.ledger.finish(self.ledger.node(name).delete_operation)
            self.ledger.drop_node(name)
            self.ledger.save()
        _log.info("node %s is gone", name)

    def _adopt(self, node: NodeRecord) -> None:
        """A ready node is taken over as it is, but a slice of a gang that is not complete is made anew with it."""
        queued = self.ledger.find_queued(node.queued)
        if queued is not None and queued.state is QueuedState.PROVISIONING:
            self.ledger.change_node(node.name, state=NodeState.RESTARTING)
            self.reboot(node.name)

    def _watch(self) -> None:
        looked = 0.0
        while not self._closed.is_set():
            try:
                if time.monotonic() - looked >= self._settings.watch_seconds:
                    looked = time.monotonic()
                    self._look()
                self._take_due()
                self.queue.step()
            except OSError as error:
                # Of a fault file; the hosts must be watched on.
                _log.warning("a look at the nodes was cut short: %s", error)
            self.ledger.changed.wait(self._settings.watch_seconds)
            self.ledger.changed.clear()

    def _look(self) -> None:
        self._hosts.reap()
        self.ledger.save_what_is_left()
        ready = [node for node in self.ledger.nodes if node.state is NodeState.READY]
        for node in ready:
            dead = [host for host in node.hosts if not host.alive]
            if dead:
                self._terminate(node, dead)
        for node_id in self.faults.preemptions():
            for node in [node for node in ready if node.node_id == node_id and self._can_be_preempted(node)]:
                self.faults.preempted(node_id)
                with contextlib.suppress(ApiError):  # it is gone since
                    self.preempt(node.name)

    def _can_be_preempted(self, node: NodeRecord) -> bool:
        queued = self.ledger.find_queued(node.queued)
        complete = queued is None or queued.state is QueuedState.ACTIVE
        return complete and node.state is NodeState.READY and node.preempt_at is None

    def _take_due(self) -> None:
        """Takes away the nodes whose notice is over."""
        with self._lock:
            now = time.time()
            due = [
                node
                for node in self.ledger.nodes
                if node.preempt_at is not None
                and now >= node.preempt_at
                and node.state in (NodeState.READY, NodeState.TERMINATED)
            ]
            for node in due:
                self.ledger.change_node(
                    node.name, state=NodeState.PREEMPTED, health_description="The TPU was preempted."
                )
            if due:
                self.ledger.save()
        grace = self._settings.grace_seconds
        for node in due:
            threading.Thread(target=self._take, args=(node.hosts, grace)).start()

    def _take(self, hosts: tuple[HostRecord, ...], grace: float) -> None:
        self._hosts.end(hosts, grace_seconds=grace)
        self.ledger.changed.set()

    def _terminate(self, node: NodeRecord, dead: list[HostRecord]) -> None:
        workers = ", ".join(str(host.worker) for host in dead)
        with self._lock:
            current = self.ledger.find_node(node.name)
            if current is None or current.key != node.key or current.state is not NodeState.READY:
                return
            description = f"worker {workers} of {len(node.hosts)} died: its supervisor process is gone"
            self.ledger.change_node(node.name, state=NodeState.TERMINATED, health_description=description)
            self.ledger.save()
        _log.warning("node %s lost a host: %s", node.name, description)
        threading.Thread(target=self._hosts.end, args=(dead,), kwargs={"grace_seconds": 0.0}).start()

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

    def _spec(self, node: NodeRecord, host: HostRecord, hosts: tuple[HostRecord, ...], coordinator: str) -> HostSpec:
        location = LOCATION.fullmatch(node.location)
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
            slices=node.slices,
            slice_index=node.slice_index,
            coordinator=coordinator,
        )
