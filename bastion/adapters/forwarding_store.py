"""The base of object stores that wrap another one: to count, delay, watch or fail its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore, StoredObject

T = TypeVar("T")


class ForwardingStore:
    """An `ObjectStore` that passes every call to `store`. Subclasses override `_call`, or single methods."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        return self._call("get", key, lambda: self._store.get(key, start=start, max_bytes=max_bytes))

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        return self._call("get", key, lambda: self._store.get_range(key, start=start, size=size))

    def head(self, key: str) -> ObjectMeta | None:
        return self._call("head", key, lambda: self._store.head(key))

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        return self._call(
            "list", prefix, lambda: self._store.list(prefix, start_after=start_after, end_before=end_before)
        )

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return self._call("put", key, lambda: self._store.put(key, data, generation=generation))

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return self._call("append", key, lambda: self._store.append(key, data, generation=generation))

    def delete(self, key: str, *, generation: int) -> None:
        self._call("delete", key, lambda: self._store.delete(key, generation=generation))

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:  # noqa: ARG002 - for subclasses
        """Make one call to `store`. Of a listing this covers the call, not the iteration."""
        return call()
