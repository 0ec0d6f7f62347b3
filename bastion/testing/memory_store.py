"""An object store in memory: deterministic, the model for every other store, and the simulator's bucket."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, check_key, check_read_size, check_size, check_start
from bastion.core.errors import NotFound, PreconditionFailed
from bastion.ports import StoredObject


@dataclass(slots=True)
class _Object:
    """Mutable, so that an append costs only its own bytes."""

    meta: ObjectMeta
    data: bytearray


class MemoryStore:
    """`bastion.ports.ObjectStore` in one process. `now` becomes `ObjectMeta.updated`."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        # Sorted; the order of code points is the order of UTF-8 bytes.
        self._keys: list[str] = []
        self._generation = 0

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        stored = self._stored(key, start)
        check_read_size(repr(key), stored.meta.size - start, max_bytes)
        with memoryview(stored.data) as view:
            return StoredObject(meta=stored.meta, data=bytes(view[start:]))

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        check_size(size)
        stored = self._stored(key, start)
        with memoryview(stored.data) as view:
            return StoredObject(meta=stored.meta, data=bytes(view[start : start + size]))

    def _stored(self, key: str, start: int) -> _Object:
        check_key(key)
        check_start(start)
        with self._lock:
            stored = self._objects.get(key)
        if stored is None:
            raise NotFound(f"no such object in the memory store: {key!r}")
        return stored

    def head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        with self._lock:
            stored = self._objects.get(key)
            return None if stored is None else stored.meta

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        with self._lock:
            found = []
            first = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, start_after))
            for index in range(first, len(self._keys)):
                key = self._keys[index]
                if not key.startswith(prefix) or (end_before and key >= end_before):
                    break
                found.append(self._objects[key].meta)
        return iter(found)

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        with self._lock:
            self._expect(key, generation)
            return self._store(key, bytearray(data))

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        with self._lock:
            self._expect(key, generation)
            stored = self._objects.get(key)
            if stored is None:
                return self._store(key, bytearray(data))
            stored.data += data
            stored.meta = replace(stored.meta, size=len(stored.data), generation=self._next(), updated=self._now())
            return stored.meta

    def delete(self, key: str, *, generation: int) -> None:
        check_key(key)
        with self._lock:
            if key in self._objects:
                self._expect(key, generation)
                del self._objects[key]
                del self._keys[bisect.bisect_left(self._keys, key)]

    def _expect(self, key: str, generation: int) -> None:
        stored = self._objects.get(key)
        present = 0 if stored is None else stored.meta.generation
        if present != generation:
            raise PreconditionFailed(
                f"the object {key!r} has generation {present}, not {generation} (0: it does not exist); read it again"
            )

    def _next(self) -> int:
        self._generation += 1
        return self._generation

    def _store(self, key: str, data: bytearray) -> ObjectMeta:
        if key not in self._objects:
            bisect.insort(self._keys, key)
        meta = ObjectMeta(key=key, size=len(data), generation=self._next(), updated=self._now())
        self._objects[key] = _Object(meta, data)
        return meta
