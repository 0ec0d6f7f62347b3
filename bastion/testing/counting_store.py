"""A store wrapper that counts calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore, StoredObject


class CountingStore:
    """Counts every call, failed ones included.

    Attributes:
        calls: By method name.
        requests: What a bucket in the cloud would bill: calls, plus further pages of listings.
        read, listed, written, deleted: Arguments of `get`, of `list`, of `put` and `append`, and of `delete`, in order.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
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

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        self._count("get", key, self.read)
        return self._store.get(key, start=start, max_bytes=max_bytes)

    def head(self, key: str) -> ObjectMeta | None:
        self._count("head", key, None)
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        self._count("list", prefix, self.listed)
        return self._paged(self._store.list(prefix, start_after=start_after, end_before=end_before))

    def _paged(self, listing: Iterator[ObjectMeta]) -> Iterator[ObjectMeta]:
        for number, meta in enumerate(listing):
            if number and number % limits.LIST_PAGE_OBJECTS == 0:
                with self._lock:
                    self.requests += 1
            yield meta

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        self._count("put", key, self.written)
        return self._store.put(key, data, generation=generation)

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        self._count("append", key, self.written)
        return self._store.append(key, data, generation=generation)

    def delete(self, key: str, *, generation: int) -> None:
        self._count("delete", key, self.deleted)
        self._store.delete(key, generation=generation)

    def _count(self, method: str, key: str, keys: list[str] | None) -> None:  # type: ignore[valid-type]
        with self._lock:
            self.calls[method] += 1
            self.requests += 1
            if keys is not None:
                keys.append(key)
