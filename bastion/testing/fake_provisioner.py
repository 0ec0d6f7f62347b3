"""A provisioner in memory, with configurable faults of the cloud."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bastion.core.errors import GangExists, ProvisionerUnavailable, Stockout
from bastion.core.model.gangs import GangFailure, GangRef, GangRequest, GangState, GangStatus
from bastion.core.model.kueue import KueueStatus
from bastion.ports import Clock
from bastion.testing.fake_kueue import FakeKueue


@dataclass(slots=True)
class _Gang:
    request: GangRequest
    created_at: float
    state: GangState = GangState.CREATING
    message: str = ""
    waiting: str = ""
    waiting_message: str = ""
    failure: GangFailure | None = None
    partial: bool = False
    pinned: bool = False
    orphaned: bool = False
    kueue: KueueStatus | None = None
    lost: set[int] = field(default_factory=set)
    delete_at: float | None = None

    @property
    def status(self) -> GangStatus:
        ref = self.request.ref
        if self.orphaned:
            return self._orphan
        nodes = {
            ref.node(k): GangState.LOST if k in self.lost and self.state is not GangState.DELETING else self.state
            for k in range(ref.num_slices)
        }
        return GangStatus(
            ref=ref,
            run=self.request.run,
            token=self.request.token,
            state=GangState.LOST if self.lost and self.state is not GangState.DELETING else self.state,
            waiting=self.waiting if self.state is GangState.WAITING else "",
            waiting_message=self.waiting_message if self.state is GangState.WAITING else "",
            partial=self.partial and self.state is GangState.WAITING,
            failure=self.failure if self.state in (GangState.FAILED, GangState.LOST) else None,
            message=self.message,
            nodes=nodes,
            kueue=self.kueue,
        )

    @property
    def _orphan(self) -> GangStatus:
        """Only what the gang consists of is left: neither its size nor its token is known."""
        failure = GangFailure(cause="infrastructure", message="its head was deleted; its parts are left (simulated)")
        going = self.state is GangState.DELETING
        return GangStatus(
            ref=replace(self.request.ref, num_slices=1),
            run=self.request.run,
            token="",
            state=GangState.DELETING if going else GangState.FAILED,
            failure=None if going else failure,
            message=failure.message,
        )

    def runs(self, slice_index: int) -> bool:
        """Whether the slice's hosts are up."""
        return self.state is GangState.READY and slice_index not in self.lost


class FakeProvisioner:
    """Gangs become ready and disappear as time passes on the injected clock.

    Attributes:
        ready_seconds, delete_seconds: Duration of creating and deleting a gang.
        stockouts: Number of next creations that fail later, for lack of capacity.
        waits: Zones without capacity, with the API's state name: gangs wait until the zone is removed here.
        refusal: If set, every creation raises it.
        lose_replies: Number of next creations that happen without a reply.
        late_creates: Number of next creations that raise and happen `late_seconds` later.
        hide_new_seconds: Gangs younger than this are missing from listings.
        half_placed: Whether gangs that wait hold some of their machines.
        lag_seconds: Listings show what there was so long ago, or longer, as from a cache; lookups do not.
        down: Whether every call fails.
        kueue: Decides on the gangs in its queues.
        created, deleted: Requests carried out, and names of deleted gangs, in order.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._gangs: dict[str, _Gang] = {}
        self._failures: dict[str, Exception] = {}
        self._late: list[tuple[float, GangRequest]] = []
        self._vanished: dict[str, _Gang] = {}
        self.ready_seconds = 0.0
        self.delete_seconds = 0.0
        self.stockouts = 0
        self.waits: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.lose_replies = 0
        self.late_creates = 0
        self.late_seconds = 10.0
        self.hide_new_seconds = 0.0
        self.half_placed = False
        self.lag_seconds = 0.0
        self._listed: list[tuple[float, Sequence[GangStatus]]] = []
        self.down = False
        self.kueue = FakeKueue(clock)
        self.created: list[GangRequest] = []
        self.deleted: list[str] = []

    # -- the port -----------------------------------------------------------------------------------------------

    def create(self, request: GangRequest) -> None:
        name = request.ref.name
        with self._lock:
            self._pass_time()
            if self.refusal is not None:
                raise self.refusal
            if name in self._gangs:
                raise GangExists(f"{name} already exists")
            self._failures.pop(name, None)
            if self.stockouts:
                self.stockouts -= 1
                self._failures[name] = Stockout("There is no more capacity in the zone (simulated)")
                return
            if self.late_creates:
                self.late_creates -= 1
                self._late.append((self._clock.monotonic() + self.late_seconds, request))
                raise ProvisionerUnavailable("no answer to the creation (simulated)")
            self._add(request)
            if self.lose_replies:
                self.lose_replies -= 1
                raise ProvisionerUnavailable("the reply to the creation was lost (simulated)")

    def failure(self, ref: GangRef) -> Exception | None:
        return self._failures.get(ref.name)

    def get(self, ref: GangRef) -> GangStatus | None:
        with self._lock:
            self._pass_time()
            gang = self._gangs.get(ref.name)
            return None if gang is None else gang.status

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        """Return gangs as in the port; its own zone has every gang without another one."""
        with self._lock:
            self._pass_time()
            now = self._clock.monotonic()
            present = [
                gang.status for _, gang in sorted(self._gangs.items()) if now - gang.created_at >= self.hide_new_seconds
            ]
            return [status for status in self._as_cached(present, now) if status.ref.zone == zone]

    def delete(self, ref: GangRef) -> None:
        with self._lock:
            self._pass_time()
            gang = self._gangs.get(ref.name)
            if gang is None or gang.delete_at is not None:
                return
            self.deleted.append(ref.name)
            gang.delete_at = self._clock.monotonic() + self.delete_seconds
            gang.state = GangState.DELETING
            self._pass_time()

    def _as_cached(self, present: Sequence[GangStatus], now: float) -> Sequence[GangStatus]:
        if not self.lag_seconds:
            self._listed.clear()
            return present
        self._listed.append((now, present))
        old = [listed for listed in self._listed if listed[0] <= now - self.lag_seconds]
        self._listed = [*old[-1:], *(listed for listed in self._listed if listed[0] > now - self.lag_seconds)]
        return self._listed[0][1]

    # -- faults ----------------------------------------------------------------------------------------------

    def live_requests(self) -> Sequence[GangRequest]:
        """Return ready gangs that are not being deleted: all their hosts are up."""
        with self._lock:
            self._pass_time()
            return [g.request for _, g in sorted(self._gangs.items()) if g.status.state is GangState.READY]

    def live_slices(self) -> Sequence[tuple[GangRequest, int]]:
        """Return slices whose hosts are up, as (gang request, slice index)."""
        with self._lock:
            self._pass_time()
            return [
                (gang.request, k)
                for _, gang in sorted(self._gangs.items())
                for k in range(gang.request.ref.num_slices)
                if gang.runs(k)
            ]

    def existing_requests(self) -> Sequence[GangRequest]:
        """Return gangs in any state: what the cloud would bill."""
        with self._lock:
            self._pass_time()
            return [gang.request for _, gang in sorted(self._gangs.items())]

    def lose(self, name: str, message: str = "preempted (simulated)", *, slice_index: int = 0) -> None:
        """Kill the hosts of one slice; the gang is lost and stays until it is deleted."""
        with self._lock:
            gang = self._gangs[name]
            gang.lost.add(slice_index)
            gang.message = message

    def orphan(self, name: str) -> None:
        """Remove the gang's head only: its hosts stay as they are, until each part is deleted."""
        with self._lock:
            self._gangs[name].orphaned = True

    def evict(self, name: str, message: str, reason: str = "Preempted") -> None:
        """Let Kueue take the gang's quota away."""
        self.put_into(name, GangState.LOST, failure=self.kueue.evict(name, reason, message))

    def vanish(self, name: str) -> None:
        """Remove the gang, as if deleted by hand."""
        with self._lock:
            self._vanished[name] = self._gangs.pop(name)

    def resurrect(self, name: str) -> None:
        """Restore a vanished or deleted gang with newly booted hosts."""
        with self._lock:
            gang = self._vanished.pop(name)
            if name not in self._gangs:
                self._gangs[name] = _Gang(gang.request, self._clock.monotonic())

    @property
    def vanished(self) -> Sequence[str]:
        return sorted(self._vanished)

    def put_into(
        self,
        name: str,
        state: GangState,
        *,
        waiting: str = "",
        waiting_message: str = "",
        failure: GangFailure | None = None,
        partial: bool = False,
    ) -> None:
        """Put the gang into a state until it is deleted."""
        with self._lock:
            gang = self._gangs[name]
            gang.state, gang.waiting, gang.failure, gang.partial = state, waiting, failure, partial
            gang.waiting_message, gang.pinned = waiting_message, True

    def replace_token(self, name: str, token: str) -> None:
        with self._lock:
            gang = self._gangs[name]
            gang.request = replace(gang.request, token=token)

    def move(self, name: str, zone: str) -> None:
        with self._lock:
            gang = self._gangs[name]
            gang.request = replace(gang.request, ref=replace(gang.request.ref, zone=zone))

    def _add(self, request: GangRequest) -> None:
        self._gangs[request.ref.name] = _Gang(request, self._clock.monotonic())
        self.kueue.add(request)
        self.created.append(request)

    def _pass_time(self) -> None:
        if self.down:
            raise ProvisionerUnavailable("the provisioning API does not answer (simulated)")
        now = self._clock.monotonic()
        due = [late for late in self._late if late[0] <= now]
        self._late = [late for late in self._late if late[0] > now]
        for _, request in due:
            if request.ref.name not in self._gangs:
                self._add(request)
        self.kueue.decide()
        for name, gang in list(self._gangs.items()):
            gang.kueue = self.kueue.of(name)
            if gang.delete_at is not None and now >= gang.delete_at:
                self._vanished[name] = self._gangs.pop(name)
                self.kueue.drop(name)
            elif not gang.pinned:
                self._provide(gang, now)

    def _provide(self, gang: _Gang, now: float) -> None:
        """Make a gang wait for Kueue or for capacity, or come up."""
        if gang.kueue is not None and not gang.kueue.admitted:
            gang.state, gang.waiting, gang.waiting_message = GangState.WAITING, "NoWorkload", "no Workload (simulated)"
            if gang.kueue.conditions:
                gang.waiting, gang.waiting_message = gang.kueue.conditions[0].reason, gang.kueue.conditions[0].message
            return
        word = self.waits.get(gang.request.ref.zone)
        if gang.state in (GangState.CREATING, GangState.WAITING) and word is not None:
            gang.state, gang.waiting, gang.partial = GangState.WAITING, word, self.half_placed
        elif gang.state is GangState.WAITING:
            gang.state, gang.created_at = GangState.CREATING, now
        if gang.state is GangState.CREATING and now - gang.created_at >= self.ready_seconds:
            gang.state = GangState.READY
