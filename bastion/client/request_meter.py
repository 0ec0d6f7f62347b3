"""A store that counts the requests of Cloud Storage, so that a poller can pace itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore

T = TypeVar("T")


class RequestMeter(ForwardingStore):
    """Passes every call on. `requests`: one for each call, and one for each further page of a listing as it is read."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self.requests = 0

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        listing = super().list(prefix, start_after=start_after, end_before=end_before)
        for number, meta in enumerate(listing):
            if number and number % limits.LIST_PAGE_OBJECTS == 0:
                self._count()
            yield meta

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        self._count()
        return super()._call(method, key, call)

    def _count(self) -> None:
        with self._lock:
            self.requests += 1
