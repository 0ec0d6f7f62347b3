"""A bucket with delays: writes land late, and listings miss new objects.

A delayed write gets no reply (`StoreUnavailable`) and lands later; the store then checks its precondition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import NotFound, PreconditionFailed, StoreUnavailable
from bastion.ports import Clock, ObjectStore

T = TypeVar("T")

Moment = Callable[[str, str], None]
"""`(method, key)`: called right before and right after a request; may block or raise."""


@dataclass(frozen=True, slots=True)
class _Held:
    lands_at: float
    key: str
    land: Callable[[], object]


class SlowBucket:
    """The shared part of all clients.

    Attributes:
        lag_seconds: How long listings miss a new object.
        held: Delayed writes.
        landed: Keys of delayed writes that took effect, in order.
        hidden: How often a listing missed a new object.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.store = store
        self._clock = clock
        self._under_way: list[_Held] = []
        self._born: dict[str, float] = {}
        self.lag_seconds = 0.0
        self.held = 0
        self.landed: list[str] = []
        self.hidden = 0

    def way(self) -> SlowWay:
        return SlowWay(self)

    def hold(self, key: str, seconds: float, land: Callable[[], object]) -> None:
        self.held += 1
        self._under_way.append(_Held(self._clock.monotonic() + seconds, key, land))

    def land(self) -> None:
        """Apply every due write whose precondition holds."""
        now = self._clock.monotonic()
        due = [held for held in self._under_way if held.lands_at <= now]
        self._under_way = [held for held in self._under_way if held.lands_at > now]
        for held in sorted(due, key=lambda held: held.lands_at):
            before = self.store.head(held.key)
            with contextlib.suppress(PreconditionFailed, NotFound):
                held.land()
                if self.store.head(held.key) != before:
                    self.landed.append(held.key)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def wrote(self, key: str, generation: int) -> None:
        if generation == 0:
            self._born[key] = self._clock.monotonic()

    def seen(self, found: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
        """Yield a listing without the newest objects."""
        oldest = self._clock.monotonic() - self.lag_seconds
        for meta in found:
            if self._born.get(meta.key, oldest) > oldest:
                self.hidden += 1
            else:
                yield meta


class SlowWay(ForwardingStore):
    """One client's `ObjectStore`. `delay`: `(method, key)` -> seconds; `moment`: called around each request."""

    def __init__(self, bucket: SlowBucket) -> None:
        self._bucket = bucket
        super().__init__(bucket.store)
        self._ordered: list[tuple[str, str, float]] = []
        self.delay: Callable[[str, str], float | None] = lambda _method, _key: None
        self.moment: Moment = lambda _method, _key: None

    def hold_next(self, method: str, key: str, seconds: float) -> None:
        """Delay the next write of that method to a key with that prefix."""
        self._ordered.append((method, key, seconds))

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        return self._bucket.seen(super().list(prefix, start_after=start_after, end_before=end_before))

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        def land() -> ObjectMeta:
            meta = self._store.put(key, data, generation=generation)
            self._bucket.wrote(key, generation)
            return meta

        return self._write("put", key, land)

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        def land() -> ObjectMeta:
            meta = self._store.append(key, data, generation=generation)
            self._bucket.wrote(key, generation)
            return meta

        return self._write("append", key, land)

    def delete(self, key: str, *, generation: int) -> None:
        self._write("delete", key, lambda: self._store.delete(key, generation=generation))

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        self.moment(method, key)
        return super()._call(method, key, call)

    def _write(self, method: str, key: str, land: Callable[[], T]) -> T:
        self.moment(method, key)
        seconds = self._held_for(method, key)
        if seconds is not None:
            self._bucket.hold(key, seconds, land)
            raise StoreUnavailable(f"{method} of {key!r}: no answer (simulated); try again")
        done = land()
        self.moment(method, key)
        return done

    def _held_for(self, method: str, key: str) -> float | None:
        for index, (wanted, start, seconds) in enumerate(self._ordered):
            if wanted == method and key.startswith(start):
                del self._ordered[index]
                return seconds
        return self.delay(method, key)
