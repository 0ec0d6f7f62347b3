"""A store inside a store: a bastion's ROOT is a prefix in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, check_key, has_line_end
from bastion.ports import ObjectStore, StoredObject


class PrefixedStore:
    """The objects of `store` whose keys begin with `prefix`, under the rest of their keys.

    The prefix of a folder ends in `/`. Keys may have 1024 bytes minus the prefix. Error messages name whole keys.
    Raises ValueError if no key can begin with the prefix.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        if prefix:
            check_key(prefix)
        self._store = store
        self._prefix = prefix

    def __repr__(self) -> str:
        return f"PrefixedStore({self._store!r}, {self._prefix!r})"

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        stored = self._store.get(self._whole(key), start=start, max_bytes=max_bytes)
        return replace(stored, meta=self._inner(stored.meta))

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        stored = self._store.get_range(self._whole(key), start=start, size=size)
        return replace(stored, meta=self._inner(stored.meta))

    def head(self, key: str) -> ObjectMeta | None:
        meta = self._store.head(self._whole(key))
        return None if meta is None else self._inner(meta)

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        # Starting after the bare prefix omits an object with exactly that key, which has no name here.
        end = self._prefix + end_before if end_before else ""
        listing = self._store.list(self._prefix + prefix, start_after=self._prefix + start_after, end_before=end)
        # Names of S3 may have line ends, which no call here takes: nobody can read, replace or delete such an object.
        return (self._inner(meta) for meta in listing if not has_line_end(meta.key))

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return self._inner(self._store.put(self._whole(key), data, generation=generation))

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return self._inner(self._store.append(self._whole(key), data, generation=generation))

    def delete(self, key: str, *, generation: int) -> None:
        self._store.delete(self._whole(key), generation=generation)

    def _whole(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _inner(self, meta: ObjectMeta) -> ObjectMeta:
        return replace(meta, key=meta.key[len(self._prefix) :])
