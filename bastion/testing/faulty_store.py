"""A store wrapper that fails by a plan, which depends only on the seed and the order of the calls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TypeVar

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import StoreUnavailable
from bastion.ports import ObjectStore

T = TypeVar("T")


class Fault(Enum):
    """Where a call fails."""

    BEFORE = "request lost"
    """The store got nothing."""
    AFTER = "reply lost"
    """The store carried it out, but the caller gets no reply. A listing stops after half of its objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    method: str
    key: str
    fault: Fault


class FaultyStore(ForwardingStore):
    """Raises `StoreUnavailable` at random or on demand.

    `before` and `after` are the probabilities, per call, of `Fault.BEFORE` and `Fault.AFTER`.

    Attributes:
        enabled: False lets every call pass without using the plan.
        failed: Every failed call, in order.
    """

    def __init__(self, store: ObjectStore, *, seed: int = 0, before: float = 0.0, after: float = 0.0) -> None:
        super().__init__(store)
        self._random = random.Random(seed)
        self._before = before
        self._after = after
        self._lock = threading.Lock()
        self._ordered: list[tuple[str, str | None, Fault]] = []
        self.enabled = True
        self.failed: list[FailedCall] = []

    def fail_next(self, method: str, *, key: str | None = None, fault: Fault = Fault.BEFORE, times: int = 1) -> None:
        """Make the next `times` calls of `method` (on `key`, if given) fail."""
        with self._lock:
            self._ordered += [(method, key, fault)] * times

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        fault = self._begin("list", prefix)
        listing = self._store.list(prefix, start_after=start_after, end_before=end_before)
        return listing if fault is None else self._half(prefix, listing, fault)

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        fault = self._begin(method, key)
        done = super()._call(method, key, call)
        self._end(method, key, fault)
        return done

    def _half(self, prefix: str, listing: Iterator[ObjectMeta], fault: Fault) -> Iterator[ObjectMeta]:
        found = [*listing]
        yield from islice(found, len(found) // 2)
        self._end("list", prefix, fault)

    def _begin(self, method: str, key: str) -> Fault | None:
        """Choose this call's fault; raises if it is before the effect."""
        with self._lock:
            fault = self._next_fault(method, key) if self.enabled else None
            if fault is not None:
                self.failed.append(FailedCall(method=method, key=key, fault=fault))
        if fault is Fault.BEFORE:
            self._end(method, key, fault)
        return fault

    def _next_fault(self, method: str, key: str) -> Fault | None:
        for index, (wanted, on_key, fault) in enumerate(self._ordered):
            if wanted == method and on_key in (None, key):
                del self._ordered[index]
                return fault
        chance = self._random.random()
        if chance < self._before:
            return Fault.BEFORE
        return Fault.AFTER if chance < self._before + self._after else None

    @staticmethod
    def _end(method: str, key: str, fault: Fault | None) -> None:
        if fault is not None:
            raise StoreUnavailable(f"{method} of {key!r}: {fault.value} (simulated); try again")
