"""The adapters of `bastion.ports.ObjectStore` as its contract's tests use them (`test_object_store*.py`).

An adapter joins by an entry in `BACKENDS`: a function that makes an empty bucket and returns how to open it.

On a bucket whose requests fail at random (`gcs-faulty`) the contract is the same, with one difference: a call may end
with `StoreUnavailable`, where its outcome cannot be known. The tests then do what the port tells callers to do. Those
in which one client writes a key make the same call again (`Persistent`); those in which clients race look whether their
write is there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.forwarding_store import ForwardingStore
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core import limits
from bastion.core.errors import StoreUnavailable
from bastion.ports import ObjectMeta, ObjectStore
from bastion.testing.memory_store import MemoryStore
from tests.support.gcs_storage import ALL_FAULTS, HASTY, Storage
from tests.support.s3_server import S3Server
from tests.support.s3_stub import S3Stub
from tests.support.store_calls import WRITES, T


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One empty bucket.

    Attributes:
        connect: Another client of the same bucket.
        settle: Waits until no unanswered request is under way.
        key_max_bytes: The longest key it takes.
        takes: Whether it can have a key, in which nothing but the adapter's contract is in the way.
        beside_folders: Whether an object may be added whose name is the folder of others.
        ordered: Whether generations increase. On S3 they differ, except between the same bytes in the same second.
    """

    connect: Callable[[], ObjectStore]
    settle: Callable[[], None] = lambda: None
    key_max_bytes: int = limits.OBJECT_KEY_MAX_BYTES
    takes: Callable[[str], bool] = lambda _: True
    beside_folders: bool = True
    ordered: bool = True

    def open(self) -> ObjectStore:
        """Another client, for a test in which no two clients write the same key."""
        return Persistent(self.connect(), self.settle)


class Persistent(ForwardingStore):
    """A store as its only writer uses it: what may not have been done is done again, which never does it twice.

    A deletion first waits for `settle`: an unanswered try of a create may land after it.
    """

    def __init__(self, store: ObjectStore, settle: Callable[[], None]) -> None:
        super().__init__(store)
        self._settle = settle

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        if method == "delete":
            self._settle()
        return _persistently(call) if method in WRITES else call()


def _persistently(call: Callable[[], T]) -> T:
    for _ in range(10):
        with contextlib.suppress(StoreUnavailable):
            return call()
    return call()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a test may make its bucket.

    Attributes:
        folder: Empty.
        storage: Cloud Storage (an endpoint of ours) of a kind in `STORAGES`.
        s3: A real S3 server.
        s3_stub: S3 as Amazon documents it, of a kind in `S3_STUBS`.
    """

    folder: Path
    storage: Callable[[str], Storage]
    s3: Callable[[], S3Server]
    s3_stub: Callable[[str], S3Stub]


STORAGES: dict[str, Callable[[Path], Storage]] = {
    "plain": Storage,
    # Its requests fail at random.
    "faulty": lambda folder: Storage(folder, rules=ALL_FAULTS),
    # It leaves out what the documentation does not promise.
    "bare": lambda folder: Storage(folder, bare=True),
}


def _stub_with_time() -> S3Stub:
    stub = S3Stub()
    stub.let_time_pass()
    return stub


S3_STUBS: dict[str, Callable[[], S3Stub]] = {
    "plain": _stub_with_time,
    "faulty": lambda: S3Stub(rules=ALL_FAULTS),
}


def _memory(site: Site) -> Bucket:
    store = MemoryStore()
    return Bucket(connect=lambda: store)


def _directory(site: Site) -> Bucket:
    return Bucket(connect=lambda: DirectoryStore(site.folder / "bucket", fsync=False))


def _durable_directory(site: Site) -> Bucket:
    return Bucket(connect=lambda: DirectoryStore(site.folder / "bucket"))


def _prefixed_directory(site: Site) -> Bucket:
    return _prefixed(lambda: DirectoryStore(site.folder / "bucket", fsync=False))


def _gcs(site: Site) -> Bucket:
    return _plain_gcs(site.storage("plain"))


def _bare_gcs(site: Site) -> Bucket:
    return _plain_gcs(site.storage("bare"))


def _plain_gcs(storage: Storage) -> Bucket:
    name = storage.new_bucket()
    return Bucket(connect=lambda: storage.store(name))


def _faulty_gcs(site: Site) -> Bucket:
    storage = site.storage("faulty")
    name = storage.new_bucket()
    return Bucket(connect=lambda: storage.store(name, patience=HASTY), settle=storage.settle)


def _prefixed_gcs(site: Site) -> Bucket:
    storage = site.storage("plain")
    name = storage.new_bucket()
    return _prefixed(lambda: storage.store(name))


def _s3(site: Site) -> Bucket:
    server = site.s3()
    name = server.new_bucket()
    return Bucket(
        connect=lambda: server.store(name),
        key_max_bytes=1000,
        takes=_is_path,
        beside_folders=False,
        ordered=False,
    )


def _is_path(key: str) -> bool:
    """What SeaweedFS takes: the path of a file."""
    return "\\" not in key and all(part not in ("", ".", "..") and len(part.encode()) < 255 for part in key.split("/"))


def _s3_as_amazon(site: Site) -> Bucket:
    stub = site.s3_stub("plain")
    name = stub.new_bucket()
    return Bucket(connect=lambda: stub.store(name))


def _faulty_s3(site: Site) -> Bucket:
    stub = site.s3_stub("faulty")
    name = stub.new_bucket()
    return Bucket(connect=lambda: stub.store(name, HASTY), settle=stub.settle, ordered=False)


def _prefixed(connect: Callable[[], ObjectStore]) -> Bucket:
    prefix = "team-bastion/"
    for key in ("team-bastion", "team-bastion/", "team-bastioo/a", "a"):
        connect().put(key, b"not in the prefix", generation=0)
    return Bucket(
        connect=lambda: PrefixedStore(connect(), prefix), key_max_bytes=limits.OBJECT_KEY_MAX_BYTES - len(prefix)
    )


BACKENDS: dict[str, Callable[[Site], Bucket]] = {
    "memory": _memory,
    "directory": _directory,
    "durable-directory": _durable_directory,
    "prefixed-directory": _prefixed_directory,
    "gcs": _gcs,
    "gcs-faulty": _faulty_gcs,
    "gcs-bare": _bare_gcs,
    "prefixed-gcs": _prefixed_gcs,
    "s3": _s3,
    "s3-as-amazon": _s3_as_amazon,
    "s3-faulty": _faulty_s3,
}


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key for meta in store.list(prefix, start_after=start_after)]


def told_by_get(meta: ObjectMeta) -> ObjectMeta:
    """What is exact in the metadata that `get` tells: all but the fraction of the second."""
    return replace(meta, updated=math.floor(meta.updated))
