"""A cache of values that cost a call to another service: concurrent requests for one value share a call.

The call runs outside of the lock, so it blocks no other value. Its exception reaches all waiters and is not cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from bastion.ports import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Up to `most` values, each for `seconds`, in LRU order."""

    def __init__(self, clock: Clock, *, seconds: float, most: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        # Values and their expiry times.
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._flights: dict[K, Future[V]] = {}

    def get(self, key: K, ask: Callable[[], V]) -> V:
        """Return the cached value, or the result of `ask`, shared with concurrent callers. Raises what `ask` raises."""
        with self._lock:
            kept = self._fresh(key)
            if kept is not None:
                return kept[0]
            flight = self._flights.get(key)
            if flight is None:
                mine: Future[V] = Future()
                self._flights[key] = mine
        if flight is not None:
            return flight.result()
        asked = self._clock.monotonic()
        try:
            value = ask()
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._flights[key]
            self._keep(key, value, asked + self._seconds)
        mine.set_result(value)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value that came another way."""
        with self._lock:
            self._keep(key, value, self._clock.monotonic() + self._seconds)

    def forget(self, key: K, value: V) -> None:
        """Remove this value, unless another has replaced it."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[1] is value:
                del self._kept[key]

    def _fresh(self, key: K) -> tuple[V] | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        until, value = kept
        if self._clock.monotonic() >= until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return (value,)

    def _keep(self, key: K, value: V, until: float) -> None:
        self._kept[key] = (until, value)
        self._kept.move_to_end(key)
        # Expired ones too: keys must not stay in memory.
        now = self._clock.monotonic()
        for old in [k for k, (end, _) in self._kept.items() if end <= now]:
            del self._kept[old]
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
