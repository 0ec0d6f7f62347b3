"""A provisioner in memory behind the `Provisioner` port, with the cloud's bad habits as knobs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bastion.core.errors import ProvisionerUnavailable, SliceExists, Stockout
from bastion.core.slices import SliceRequest, SliceState, SliceStatus
from bastion.ports import Clock


@dataclass(slots=True)
class _Node:
    request: SliceRequest
    created_at: float
    status: SliceStatus
    delete_at: float | None = None


class FakeProvisioner:
    """Nodes become ready and disappear as time passes on the injected clock.

    Attributes:
        ready_seconds, delete_seconds: How long creating and deleting a node takes.
        stockouts: So many of the next creations fail later, for want of capacity.
        refusal: If set, every creation raises it.
        lose_replies: So many of the next creations happen, but their answer is lost.
        late_creates: So many of the next creations raise and happen `late_seconds` afterwards.
        hide_new_seconds: A node younger than this is missing from listings.
        down: Every call fails, as while the API is out of reach.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._nodes: dict[str, _Node] = {}
        self._failures: dict[str, Exception] = {}
        self._late: list[tuple[float, SliceRequest]] = []
        self.ready_seconds = 0.0
        self.delete_seconds = 0.0
        self.stockouts = 0
        self.refusal: Exception | None = None
        self.lose_replies = 0
        self.late_creates = 0
        self.late_seconds = 10.0
        self.hide_new_seconds = 0.0
        self.down = False
        self.created: list[SliceRequest] = []
        self.deleted: list[str] = []

    # -- the port -----------------------------------------------------------------------------------------------

    def create(self, request: SliceRequest) -> None:
        with self._lock:
            self._pass_time()
            if self.refusal is not None:
                raise self.refusal
            if request.node_id in self._nodes:
                raise SliceExists(f"the node {request.node_id} exists already")
            self._failures.pop(request.node_id, None)
            if self.stockouts:
                self.stockouts -= 1
                self._failures[request.node_id] = Stockout("There is no more capacity in the zone (simulated)")
                return
            if self.late_creates:
                self.late_creates -= 1
                self._late.append((self._clock.monotonic() + self.late_seconds, request))
                raise ProvisionerUnavailable("no answer to the creation (simulated)")
            self._add(request)
            if self.lose_replies:
                self.lose_replies -= 1
                raise ProvisionerUnavailable("the answer to the creation was lost (simulated)")

    def failure(self, node_id: str) -> Exception | None:
        return self._failures.get(node_id)

    def get(self, node_id: str) -> SliceStatus | None:
        with self._lock:
            self._pass_time()
            node = self._nodes.get(node_id)
            return None if node is None else node.status

    def list(self) -> Sequence[SliceStatus]:
        with self._lock:
            self._pass_time()
            now = self._clock.monotonic()
            return [
                node.status for _, node in sorted(self._nodes.items()) if now - node.created_at >= self.hide_new_seconds
            ]

    def delete(self, node_id: str) -> None:
        with self._lock:
            self._pass_time()
            node = self._nodes.get(node_id)
            if node is None or node.delete_at is not None:
                return
            self.deleted.append(node_id)
            node.delete_at = self._clock.monotonic() + self.delete_seconds
            node.status = replace(node.status, state=SliceState.DELETING)
            self._pass_time()

    # -- what tests do to it ------------------------------------------------------------------------------------

    def live_requests(self) -> Sequence[SliceRequest]:
        """Nodes whose hosts are up: ready, and not being deleted."""
        with self._lock:
            self._pass_time()
            return [n.request for _, n in sorted(self._nodes.items()) if n.status.state is SliceState.READY]

    def existing_requests(self) -> Sequence[SliceRequest]:
        """Nodes in any state: what the cloud would bill."""
        with self._lock:
            self._pass_time()
            return [node.request for _, node in sorted(self._nodes.items())]

    def lose(self, node_id: str, message: str = "pre-empted (simulated)") -> None:
        """The node's hosts die; the node itself stays until it is deleted."""
        with self._lock:
            node = self._nodes[node_id]
            node.status = replace(node.status, state=SliceState.LOST, message=message)

    def vanish(self, node_id: str) -> None:
        """The node is gone, as if somebody had deleted it by hand."""
        with self._lock:
            del self._nodes[node_id]

    def _add(self, request: SliceRequest) -> None:
        status = SliceStatus(node_id=request.node_id, run=request.run, token=request.token, state=SliceState.CREATING)
        self._nodes[request.node_id] = _Node(request, self._clock.monotonic(), status)
        self.created.append(request)

    def _pass_time(self) -> None:
        if self.down:
            raise ProvisionerUnavailable("the provisioning API does not answer (simulated)")
        now = self._clock.monotonic()
        due = [late for late in self._late if late[0] <= now]
        self._late = [late for late in self._late if late[0] > now]
        for _, request in due:
            if request.node_id not in self._nodes:
                self._add(request)
        for node_id, node in list(self._nodes.items()):
            if node.delete_at is not None and now >= node.delete_at:
                del self._nodes[node_id]
            elif node.status.state is SliceState.CREATING and now - node.created_at >= self.ready_seconds:
                node.status = replace(node.status, state=SliceState.READY)
