"""A controller's work loop: keys to reconcile, one at a time, on one thread; failures are retried later."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from bastion.emulators.kubernetes.client import ApiError

K = TypeVar("K")

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 0.05
_RETRY_MAX_SECONDS = 2.0


class Loop(Generic[K]):
    """Calls `reconcile(key)` for each key that was added; keys added while they wait are reconciled once.

    `reconcile` returns in how many seconds to look again (None: at the next change). ApiError and unexpected errors are
    retried with a growing pause.
    """

    def __init__(self, name: str, reconcile: Callable[[K], float | None]) -> None:
        self._name = name
        self._reconcile = reconcile
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self._failures: dict[K, int] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def add(self, key: K, *, after_seconds: float = 0.0) -> None:
        """Reconcile a key at the given time, or earlier if it is due earlier."""
        due = time.monotonic() + after_seconds
        with self._changed:
            if self._due.get(key, due + 1) <= due:
                return
            self._due[key] = due
            self._count += 1
            heapq.heappush(self._heap, (due, self._count, key))
            self._changed.notify()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a reconcile that runs is finished."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            again = self._once(key[0])
            if again is not None:
                self.add(key[0], after_seconds=again)

    def _once(self, key: K) -> float | None:
        try:
            again = self._reconcile(key)
        except ApiError as error:
            _LOG.info("%s: %s: %s", self._name, key, error)
            return self._pause(key, error.retry_after)
        except Exception:  # noqa: BLE001 - a bug about one object must not end its controller
            _LOG.exception("%s: %s", self._name, key)
            return self._pause(key, None)
        self._failures.pop(key, None)
        return again

    def _pause(self, key: K, asked_seconds: float | None) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(_RETRY_SECONDS * 2.0 ** (failures - 1), _RETRY_MAX_SECONDS)
        return max(pause, asked_seconds or 0.0)

    def _next(self) -> tuple[K] | None:
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                wait = None
                while self._heap:
                    due, _, key = self._heap[0]
                    if self._due.get(key) != due:
                        # Was made due earlier.
                        heapq.heappop(self._heap)
                    elif due > now:
                        wait = due - now
                        break
                    else:
                        heapq.heappop(self._heap)
                        del self._due[key]
                        return (key,)
                self._changed.wait(wait)
            return None
