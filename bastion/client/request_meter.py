"""A store that counts the requests of Cloud Storage, so that a poller can pace itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore, StoredObject


class RequestMeter:
    """Passes every call on. `requests`: one for each call, and one for each further page of a listing as it is read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.requests = 0

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        self._count()
        return self._store.get(key, start=start, max_bytes=max_bytes)

    def head(self, key: str) -> ObjectMeta | None:
        self._count()
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        self._count()
        for number, meta in enumerate(self._store.list(prefix, start_after=start_after, end_before=end_before)):
            if number and number % limits.LIST_PAGE_OBJECTS == 0:
                self._count()
            yield meta

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        self._count()
        return self._store.put(key, data, generation=generation)

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        self._count()
        return self._store.append(key, data, generation=generation)

    def delete(self, key: str, *, generation: int) -> None:
        self._count()
        self._store.delete(key, generation=generation)

    def _count(self) -> None:
        with self._lock:
            self.requests += 1
