"""The lease: which daemon acts. It only reduces contention; the compare-and-swap of every write keeps daemons apart.

No timestamp of others is compared with a local clock. The lease may be taken over when its generation has not changed
for the whole TTL on *my* clock, or at once if its owner was a process of this machine and is dead.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.core.model import lease
from bastion.core.model.lease import LeaseDocument
from bastion.core.plain_text import plain_line
from bastion.daemon.steady_time import SteadyTime
from bastion.ports import Clock, ObjectStore
from bastion.processes import UNKNOWN_BOOT, ProcessId


@dataclass(frozen=True, slots=True)
class _Sighting:
    """`moved`: the generation changed shortly before `since`."""

    generation: int
    since: float
    moved: bool


class Lease:
    """One daemon's hold on the bastion, renewed by calling `hold` in every tick.

    Attributes:
        held_by: The last owner that was read, for people.
        writes: Number of writes, tried or done.
        server_time: Of our last write, by the bucket's clock; 0: none.
        steady: The time that passes from owner to owner with the lease.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, *, owner: str, host_identity: str, process: str, ttl_seconds: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._host_identity = host_identity
        self._process = process
        self._ttl = ttl_seconds
        self._mine: LeaseDocument | None = None
        self._generation = 0
        self._renewed_at = float("-inf")
        self._other: _Sighting | None = None
        self._looked_at = float("-inf")
        self.held_by = ""
        self.writes = 0
        self.server_time = 0.0
        boot_id = host_identity.partition("/")[0]
        self.steady = SteadyTime(clock, boot_id="" if boot_id == UNKNOWN_BOOT else boot_id)
        # Why we cannot act; the next renewal says it to everybody who looks whether we live.
        self.problem = ""

    @property
    def epoch(self) -> int:
        return self._mine.epoch if self._mine else 0

    @property
    def fenced_epoch(self) -> int:
        return self._mine.fenced_epoch if self._mine else 0

    def may_act(self) -> bool:
        """Whether the hold is fresh enough to act; a third of the TTL remains for effects under way."""
        return self._mine is not None and self._clock.monotonic() < self._renewed_at + self._ttl * 2 / 3

    def hold(self) -> bool:
        """Renew the lease if it is due, or take it over if its owner is gone; return whether this daemon may act now.

        Raises StoreError without an answer; `may_act` says whether the old hold suffices.
        """
        now = self._clock.monotonic()
        if self._mine is not None:
            if now < self._renewed_at + self._ttl / 3:
                return True
            if self._renew(self._mine, self._generation, now):
                return True
            self._mine = None  # another daemon took it: all knowledge is stale
        return self._take_over(now)

    @property
    def exempt(self) -> tuple[str, ...]:
        return self._mine.exempt if self._mine else ()

    def fence(self, exempt: Collection[str]) -> bool:
        """Record in the lease that this epoch hands out capacity from now on; return False if another daemon took it.

        `exempt`: jobs whose attempts count although they could not be adopted. Raises StoreError.
        """
        if self._mine is None or self._mine.fenced_epoch == self._mine.epoch:
            return self._mine is not None
        changes = {"fenced_epoch": self._mine.epoch, "exempt": (*sorted(exempt),), "renewal": self._mine.renewal + 1}
        fenced = self._mine.model_copy(update=changes)
        if self._write(fenced, self._generation, self._clock.monotonic()) is not None:
            return True
        self._mine = None
        return False

    def release(self) -> None:
        if self._mine is not None:
            released = self._mine.model_copy(update={"released": True, "steady": self.steady.proposal()})
            self._store.put(keys.LEASE, released.to_bytes(), generation=self._generation)
            self._mine = None

    def _take_over(self, now: float) -> bool:
        try:
            present, generation = self._read()
        except NotFound:
            return self._take(None, 0, now)
        self.held_by = f"{present.owner} ({present.process})"
        if self._other is None or self._other.generation != generation:
            # Not `now`: a read may take as long as the TTL and return a recent write.
            moved = self._other is not None and now - self._looked_at < self._ttl
            self._other = _Sighting(generation, self._clock.monotonic(), moved)
        self._looked_at = now
        if present.owner == self._owner and not present.released:
            # Our own renewal with a lost reply.
            return self._renew(present, generation, now)
        if now - self._other.since < self._ttl and not present.released and not self._is_dead(present):
            return False
        return self._take(present, generation, now)

    def _renew(self, mine: LeaseDocument, generation: int, now: float) -> bool:
        point = self.steady.proposal() or mine.steady
        problem = plain_line(self.problem)[: limits.PROBLEM_MAX_CHARS]
        renewed = mine.model_copy(update={"renewal": mine.renewal + 1, "steady": point, "problem": problem})
        server = self._write(renewed, generation, now)
        if server is None:
            return False
        if self.steady.begun:
            self.steady.follow(point, server=server, asked=now)
        else:  # ours, with a lost reply
            self.steady.take_over(mine.steady, server=server)
        return True

    def _take(self, present: LeaseDocument | None, generation: int, now: float) -> bool:
        seen = self._other
        # Keep the predecessor's point until our first renewal, for a third daemon.
        before = present.steady if present is not None else None
        taken = LeaseDocument(
            owner=self._owner,
            epoch=present.epoch + 1 if present is not None else 1,
            host_identity=self._host_identity,
            process=self._process,
            renewal=0,
            # No daemon fences a future epoch.
            fenced_epoch=min(present.fenced_epoch, present.epoch) if present is not None else 0,
            exempt=present.exempt if present is not None else (),
            steady=before,
        )
        server = self._write(taken, generation, now)
        if server is None:
            return False
        watched = self._clock.monotonic() - seen.since if seen is not None else 0.0
        # A renewal's point is of the write before it; an owner that is later does not act.
        known = seen is not None and seen.moved and present is not None and present.renewal > 0
        at_most = watched + 2 * self._ttl if known else math.inf
        self.steady.take_over(before, server=server, at_least=watched, at_most=at_most)
        return True

    def _read(self) -> tuple[LeaseDocument, int]:
        """Return the present lease and its generation. An unreadable lease counts as one that nobody will renew."""
        unreadable = LeaseDocument(owner="unreadable", epoch=0)
        meta = self._store.head(keys.LEASE)
        if meta is not None and meta.size > limits.LEASE_MAX_BYTES:
            return unreadable, meta.generation
        stored = self._store.get(keys.LEASE, max_bytes=limits.LEASE_MAX_BYTES)
        try:
            return lease.read(stored.data), stored.meta.generation
        except InvalidDocument:
            return unreadable, stored.meta.generation

    def _is_dead(self, document: LeaseDocument) -> bool:
        process = ProcessId.parse(document.process)
        return document.host_identity == self._host_identity and process is not None and not process.alive

    def _write(self, document: LeaseDocument, generation: int, now: float) -> float | None:
        """Return the server time of the write; None: another daemon wrote first."""
        self.writes += 1
        # The hold counts from the request, not from the reply.
        try:
            meta = self._store.put(keys.LEASE, document.to_bytes(), generation=generation)
        except PreconditionFailed:
            return None
        self._mine, self._generation, self._renewed_at, self._other = document, meta.generation, now, None
        self.server_time = meta.updated
        return meta.updated
