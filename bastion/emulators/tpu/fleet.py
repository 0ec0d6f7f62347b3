"""The emulated nodes: created, booted, watched, preempted, deleted, and adopted after a restart.

Independent of gRPC and protobuf; `service.py` translates. Invariants:

* A request returns as soon as the ledger on disk records it; booting and ending run in threads.
* A node leaves the ledger only after its last process has ended.
* `TERMINATED` means that a host of a ready node died. The real service keeps such a node READY or repairs it later;
  here it is visible at once, because the slice is lost. The other hosts run until the node is deleted.
* Only a reset of its queued resource restarts a node.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bastion.core.errors import Refused
from bastion.core.model import instance_types
from bastion.emulators.loopback import AddressBlocks
from bastion.emulators.tpu.capacity import Capacity, parse_limits
from bastion.emulators.tpu.faults import CreateFailure, Faults, stockout
from bastion.emulators.tpu.hosts import Hosts, host_spec
from bastion.emulators.tpu.ledger import OpenLedger, in_location
from bastion.emulators.tpu.node_faults import FaultInjector
from bastion.emulators.tpu.queue import Queue
from bastion.emulators.tpu.records import (
    BOOTING,
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
from bastion.emulators.tpu.requests import NewNode, check_node
from bastion.emulators.tpu.settings import FleetSettings

_log = logging.getLogger(__name__)

# Of slice 0's first host, for the hosts of all slices; Cloud TPU's launchers use this port.
_MEGASCALE_PORT = 8080
# A slice that lost a host is preempted with its gang.
_TAKEN_LATE = (NodeState.TERMINATED, NodeState.PREEMPTED)


@dataclass(slots=True)
class _Work:
    """The background task of one node."""

    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class Fleet:
    """All nodes of one emulator; thread-safe."""

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
        self._fault_injector = FaultInjector(self.faults, settings.plan, self)
        self._work: dict[str, _Work] = {}
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)

    # ---- start and end of the emulator

    def open(self) -> None:
        """Take over from the previous emulator: adopt live hosts, end orphans, resume the rest."""
        self.ledger.load()
        self._hosts.sweep({node.key for node in self.ledger.nodes})
        with self._lock:
            for node in self.ledger.nodes:
                match node.state:
                    case NodeState.CREATING | NodeState.RESTARTING | NodeState.REPAIRING:
                        # Its creation was accepted, so it continues; its earlier hosts are orphans now.
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
        """Delete all nodes and queued resources; return when all processes have ended."""
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

    # ---- calls of the API

    def create(self, new: NewNode) -> OperationRecord:
        """Accept a node; it boots in the background. Raises ApiError: INVALID_ARGUMENT, ALREADY_EXISTS,
        RESOURCE_EXHAUSTED.
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
        """The node of that name. Raises ApiError (NOT_FOUND)."""
        with self._lock:
            return self.ledger.node(name)

    def host_problem(self, node: NodeRecord) -> str:
        """Why a host of a node is not up, from its startup script; empty if all are."""
        found = ((host.worker, self._hosts.folder(node.key, host.worker).problem) for host in node.hosts)
        return next((f"worker {worker}: {problem}" for worker, problem in found if problem), "")

    def nodes(self, location: str) -> list[NodeRecord]:
        """The nodes of a location, sorted by name; the zone `-` means all zones of the project."""
        found = [node for node in self.ledger.nodes if in_location(node.location, location)]
        return sorted(found, key=lambda node: node.name)

    def delete(self, name: str) -> OperationRecord:
        """Accept the deletion of a node; repeated requests get the same operation.

        The only node of a queued resource suspends it: it is SUSPENDED after the node is deleted. Raises ApiError:
        NOT_FOUND, or FAILED_PRECONDITION if the queued resource needs the node.
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

    # ---- faults

    def preempt(self, name: str) -> None:
        """Preempt the node like the real service: notify the hosts, then end them; the node stays until deleted.

        All nodes of a queued resource go together; it is SUSPENDING from the notice on, then SUSPENDED.
        """
        with self._lock:
            node = self.ledger.find_node(name)
            if node is None or not self._can_be_taken(node):
                return
            taken = [node]
            if node.queued:
                taken = self.ledger.nodes_of(self.ledger.queued(node.queued))
                self.ledger.suspend_queued(node.queued, Initiator.SERVICE)
            for each in taken:
                self._give_notice(each, NodeState.PREEMPTED)
            self.ledger.save()
        for each in taken:
            for host in each.hosts:
                with contextlib.suppress(OSError):
                    self._hosts.folder(each.key, host.worker).preempted.touch()
        self._take_due()

    def maintain(self, name: str, *, recreate: bool = False) -> None:
        """End the node's hosts for maintenance, after the notice; it becomes TERMINATED, or returns on new hosts."""
        with self._lock:
            node = self.ledger.find_node(name)
            if node is None or not self._can_be_taken(node):
                return
            self._give_notice(node, NodeState.REPAIRING if recreate else NodeState.TERMINATED)
            self.ledger.save()
        for host in node.hosts:
            with contextlib.suppress(OSError):
                self._hosts.folder(node.key, host.worker).maintenance.write_text("TERMINATE_ON_HOST_MAINTENANCE")
        self._take_due()

    def crash(self, name: str, worker: int = 0, *, silent: bool = False) -> None:
        """Kill one host of the node at once; the node becomes TERMINATED, or with `silent` stays READY."""
        with self._lock:
            node = self.ledger.find_node(name)
            if node is None or node.state is not NodeState.READY:
                return
            if silent:
                self.ledger.change_node(name, unwatched=True)
                self.ledger.save()
        hosts = [host for host in node.hosts if host.worker == worker]
        for host in hosts:
            self._hosts.kill(host)
        if not silent:
            self._terminate(node, [worker])

    # ---- calls of the queue

    def boot(self, name: str) -> None:
        self._begin(name, self._boot)

    def reboot(self, name: str) -> None:
        old = self.ledger.node(name)
        # A new key makes the old hosts orphans, also for the sweep after a crash.
        self.ledger.change_node(
            name, key=new_key(name), hosts=(), boots=old.boots + 1, ready_at=None, taken_at=None, unwatched=False
        )

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
            node = self.ledger.change_node(
                name, placed=True, hangs=node.hangs or self._fault_injector.creation_hangs(node)
            )
            if node.hangs:
                self.ledger.save()
        if node.hangs:
            stop.wait()
            return None
        if stop.wait(self._settings.create_seconds + self.faults.create_delay_seconds()):
            return None
        if (failure := self._fault_injector.creation_fails(node, zone)) is not None:
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
                process = self._hosts.start(
                    node.key, host_spec(node, host, hosts, coordinator, self._settings), listener
                )
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
            if node.state in BOOTING:
                self.ledger.change_node(name, state=NodeState.READY, ready_at=time.time(), health_description="")
                self.ledger.finish(node.create_operation)
                _log.info("node %s is ready with %d hosts", name, len(hosts))
            if hosts:
                self.ledger.save()
            else:
                self.ledger.save_soon()  # Without hosts, a node becomes ready again after a crash.

    def _coordinator(self, node: NodeRecord, stop: threading.Event) -> str:
        """The address of slice 0's first host, once known; empty without multislice."""
        if node.slices == 1:
            return ""
        while not stop.is_set():
            with self._lock:
                queued = self.ledger.find_queued(node.queued)
                first = self.ledger.find_node(queued.nodes[0]) if queued is not None else None
            if first is not None and first.hosts:
                return f"{first.hosts[0].ip}:{_MEGASCALE_PORT}"
            stop.wait(0.01)
        return ""  # The node is ending.

    def _fail(self, name: str, failure: CreateFailure) -> None:
        """A failed creation leaves no node, only an error in its operation or queued resource."""
        with self._lock:
            node = self.ledger.node(name)
            if node.state in BOOTING:
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
            _log.error("processes of node %s do not end; trying again", name)
            time.sleep(1.0)
            grace = 0
        self._hosts.remove(node.key)
        with self._lock:
            self.ledger.finish(self.ledger.node(name).delete_operation)
            self.ledger.drop_node(name)
            self.ledger.save()
        _log.info("node %s was deleted", name)

    def _adopt(self, node: NodeRecord) -> None:
        """Adopt a ready node; a slice of an incomplete gang is recreated with the gang."""
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
                # A fault file failed; still watch the hosts.
                _log.warning("could not check all nodes: %s", error)
            self.ledger.changed.wait(self._settings.watch_seconds)
            self.ledger.changed.clear()

    def _look(self) -> None:
        self._hosts.reap()
        self.ledger.save_what_is_left()
        try:
            self.capacity.exists = {**self._settings.exists, **parse_limits(self.faults.capacity())}
        except Refused as error:
            _log.warning("ignoring the file faults/capacity: %s", error)
        ready = [node for node in self.ledger.nodes if node.state is NodeState.READY]
        for node in ready:
            dead = [host.worker for host in node.hosts if not host.alive]
            if dead and not node.unwatched:
                self._terminate(node, dead)
        self._fault_injector.look([node for node in ready if self._can_be_taken(node)])

    def _can_be_taken(self, node: NodeRecord) -> bool:
        """Whether a node is READY, its gang complete, and no preemption pending."""
        queued = self.ledger.find_queued(node.queued)
        complete = queued is None or queued.state is QueuedState.ACTIVE
        return complete and node.state is NodeState.READY and node.taken_at is None

    def _give_notice(self, node: NodeRecord, state: NodeState) -> None:
        at = time.time() + self._settings.notice_seconds
        self.ledger.change_node(node.name, taken_at=at, taken_as=state)
        _log.info("node %s will be %s in %g s", node.name, state.name, self._settings.notice_seconds)

    def _take_due(self) -> None:
        """End the nodes whose notice has expired."""
        grace = self._settings.grace_seconds
        with self._lock:
            now = time.time()
            due = [
                node
                for node in self.ledger.nodes
                if node.taken_at is not None
                and now >= node.taken_at
                and (node.state is NodeState.READY or (node.state, node.taken_as) == _TAKEN_LATE)
            ]
            for node in due:
                preempted = node.taken_as is NodeState.PREEMPTED
                why = "The TPU was preempted." if preempted else "The TPU had a maintenance event."
                self.ledger.change_node(node.name, state=node.taken_as, health_description=why)
                if node.taken_as is NodeState.REPAIRING:
                    self.reboot(node.name)
                else:
                    threading.Thread(target=self._take, args=(node.hosts, grace)).start()
            if due:
                self.ledger.save()

    def _take(self, hosts: tuple[HostRecord, ...], grace: float) -> None:
        self._hosts.end(hosts, grace_seconds=grace)
        self.ledger.changed.set()

    def _terminate(self, node: NodeRecord, dead: list[int]) -> None:
        workers = ", ".join(str(worker) for worker in dead)
        with self._lock:
            current = self.ledger.find_node(node.name)
            if current is None or current.key != node.key or current.state is not NodeState.READY:
                return
            hosts = instance_types.table()[node.accelerator_type].hosts
            description = f"worker {workers} of {hosts} died: its supervisor process has ended"
            self.ledger.change_node(node.name, state=NodeState.TERMINATED, health_description=description)
            self.ledger.save()
        _log.warning("node %s lost a host: %s", node.name, description)
        gone = [host for host in node.hosts if host.worker in dead]
        threading.Thread(target=self._hosts.end, args=(gone,), kwargs={"grace_seconds": 0.0}).start()

    def _begin(self, name: str, task: Callable[[str, threading.Event], None]) -> None:
        """Run a node's task after its previous one has stopped."""
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
