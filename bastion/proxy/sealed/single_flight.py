"""Values that cost a call to another service: kept for a while, and asked for once, however many threads want them.

Layer: proxy. The service is called outside of the lock, so a slow answer holds up nobody who wants another value. What
the call raises goes to all who wait for it, and is not kept.
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
    """At most `most` values, each for at most `seconds` after it was asked for; the least recently used go first."""

    def __init__(self, clock: Clock, *, seconds: float, most: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        # Values with the instant until which they may be used.
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._flights: dict[K, Future[V]] = {}

    def get(self, key: K, ask: Callable[[], V]) -> V:
        """The value that is kept, or what `ask` returns now, or what it returns to a thread that asked before.

        Raises:
            Exception: whatever `ask` raises.
        """
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
        """Keeps a value that came another way."""
        with self._lock:
            self._keep(key, value, self._clock.monotonic() + self._seconds)

    def forget(self, key: K, value: V) -> None:
        """Drops this very value; one that has replaced it stays."""
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
        # Those past their time go too: keys must not lie in memory for longer than they may be used.
        now = self._clock.monotonic()
        for old in [k for k, (end, _) in self._kept.items() if end <= now]:
            del self._kept[old]
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
