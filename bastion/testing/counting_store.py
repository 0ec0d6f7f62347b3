"""A store wrapper that counts calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore

T = TypeVar("T")


class CountingStore(ForwardingStore):
    """Counts every call, failed ones included.

    Attributes:
        calls: By method name.
        requests: What a bucket in the cloud would bill: calls, plus further pages of listings.
        read, listed, written, deleted: Arguments of `get`, of `list`, of `put` and `append`, and of `delete`, in order.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.requests = 0
        self.read: list[str] = []
        self.listed: list[str] = []
        self.written: list[str] = []
        self.deleted: list[str] = []

    @property
    def writes(self) -> int:
        return self.calls["put"] + self.calls["append"] + self.calls["delete"]

    def reset(self) -> None:
        with self._lock:
            self.calls.clear()
            self.requests = 0
            for keys in (self.read, self.listed, self.written, self.deleted):
                keys.clear()

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        return self._paged(super().list(prefix, start_after=start_after, end_before=end_before))

    def _paged(self, listing: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
        for number, meta in enumerate(listing):
            if number and number % limits.LIST_PAGE_OBJECTS == 0:
                with self._lock:
                    self.requests += 1
            yield meta

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        keys = {
            "get": self.read,
            "list": self.listed,
            "put": self.written,
            "append": self.written,
            "delete": self.deleted,
        }
        with self._lock:
            self.calls[method] += 1
            self.requests += 1
            if method in keys:
                keys[method].append(key)
        return super()._call(method, key, call)
