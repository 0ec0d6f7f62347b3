"""The contract of `bastion.ports.ObjectStore`, sentence by sentence, on every adapter.

An adapter joins by an entry in `BACKENDS`: a function that makes an empty bucket and returns how to open it.

On a bucket whose requests fail at random (`gcs-faulty`) the contract is the same, with one difference: a call may end
with `StoreUnavailable`, where its outcome cannot be known. The tests then do what the port tells callers to do. Those
in which one client writes a key make the same call again (`Persistent`); those in which clients race look whether their
write is there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest

from bastion.adapters.directory_store import DirectoryStore
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core import limits
from bastion.core.errors import NotFound, PreconditionFailed, StoreUnavailable
from bastion.ports import ObjectMeta, ObjectStore, StoredObject
from bastion.testing.memory_store import MemoryStore
from tests.contract.gcs_storage import ALL_FAULTS, HASTY, Storage

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One empty bucket.

    Attributes:
        connect: Another client of the same bucket.
        key_max_bytes: The longest key it takes.
    """

    connect: Callable[[], ObjectStore]
    key_max_bytes: int = limits.OBJECT_KEY_MAX_BYTES

    def open(self) -> ObjectStore:
        """Another client, for a test in which no two clients write the same key."""
        return Persistent(self.connect())


class Persistent:
    """A store as its only writer uses it: what may not have been done is done again, which never does it twice."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, key: str, *, start: int = 0) -> StoredObject:
        return self._store.get(key, start=start)

    def head(self, key: str) -> ObjectMeta | None:
        return self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        return self._store.list(prefix, start_after=start_after, end_before=end_before)

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return _persistently(lambda: self._store.put(key, data, generation=generation))

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return _persistently(lambda: self._store.append(key, data, generation=generation))

    def delete(self, key: str, *, generation: int) -> None:
        _persistently(lambda: self._store.delete(key, generation=generation))


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
        storage: Cloud Storage (an endpoint of ours); with True, one whose requests fail at random.
    """

    folder: Path
    storage: Callable[[bool], Storage]


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
    storage = site.storage(False)
    name = storage.new_bucket()
    return Bucket(connect=lambda: storage.store(name))


def _faulty_gcs(site: Site) -> Bucket:
    storage = site.storage(True)
    name = storage.new_bucket()
    return Bucket(connect=lambda: storage.store(name, patience=HASTY))


def _prefixed_gcs(site: Site) -> Bucket:
    storage = site.storage(False)
    name = storage.new_bucket()
    return _prefixed(lambda: storage.store(name))


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
    "prefixed-gcs": _prefixed_gcs,
}

# In the order of their UTF-8 bytes. Among them: what cannot be a file's path, keys that are folders of others, names of
# the directory store's own, and characters whose order differs in UTF-16.
NASTY_KEYS = sorted(
    [
        " ",
        "!",
        "./",
        "../",
        "../escape",
        "../../etc/passwd",
        ".objects",
        ".objects/locks/00",
        ".objects/tmp",
        "/",
        "//",
        "/absolute",
        "A",
        "a",
        "a ",
        "a!b",
        "a.b",
        "a/",
        "a/.",
        "a/..",
        "a/../b",
        "a/.objects/x",
        "a//b",
        "a/b",
        "a/b/",
        "a/b/c",
        "a/b.c",
        "a0",
        "a\x01\x1b[31m\x7f",
        "a\\b",
        "b/c/d",
        "b/c",
        "b",
        "con",
        "per%2Fcent",
        "star*?[a]",
        "x" * 255,
        "x" * 256,
        "x" * 255 + "/y",
        "y/" + "x" * 256 + "/z",
        "é" * 127,
        "é" * 128,
        "e\u0301",
        "é",
        "\uffee",
        "\U0001f600",
        "日本/語",
        "d/" * 60 + "deep",
    ],
    key=str.encode,
)


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Storage]]:
    """Endpoints, each begun when it is first asked for."""
    running: dict[bool, Storage] = {}

    def running_one(faulty: bool) -> Storage:
        if faulty not in running:
            storage = Storage(tmp_path_factory.mktemp("storage"), rules=ALL_FAULTS if faulty else ())
            storage.open()
            running[faulty] = storage
        return running[faulty]

    yield running_one
    for storage in running.values():
        storage.close()


@pytest.fixture(params=sorted(BACKENDS))
def bucket(request: pytest.FixtureRequest, tmp_path: Path, storage: Callable[[bool], Storage]) -> Bucket:
    return BACKENDS[request.param](Site(folder=tmp_path, storage=storage))


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return bucket.open()


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key for meta in store.list(prefix, start_after=start_after)]


def told_by_get(meta: ObjectMeta) -> ObjectMeta:
    """What is exact in the metadata that `get` tells: all but the fraction of the second."""
    return replace(meta, updated=math.floor(meta.updated))


# Keys


@pytest.mark.parametrize("key", NASTY_KEYS, ids=ascii)
def test_every_key_can_be_stored_read_listed_and_deleted(store: ObjectStore, key: str) -> None:
    meta = store.put(key, b"content", generation=0)
    assert meta.key == key
    assert store.get(key).data == b"content"
    assert told_by_get(store.get(key).meta) == told_by_get(meta)
    assert store.head(key) == meta
    assert list(store.list("")) == [meta]
    assert list(store.list(key)) == [meta]
    longer = store.append(key, b", more", generation=meta.generation)
    assert store.get(key).data == b"content, more"
    store.delete(key, generation=longer.generation)
    assert store.head(key) is None
    assert keys(store) == []


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_all_nasty_keys_live_side_by_side(store: ObjectStore, order: str) -> None:
    for key in NASTY_KEYS if order == "ascending" else reversed(NASTY_KEYS):
        store.put(key, key.encode(), generation=0)
    assert keys(store) == NASTY_KEYS
    for key in NASTY_KEYS:
        assert store.get(key).data == key.encode()
        assert keys(store, key)[0] == key
    for index, key in enumerate(NASTY_KEYS):
        meta = store.head(key)
        assert meta is not None
        store.delete(key, generation=meta.generation)
        assert keys(store) == NASTY_KEYS[index + 1 :]


def test_a_key_may_have_its_full_length(bucket: Bucket) -> None:
    store = bucket.open()
    for key in ("k" * bucket.key_max_bytes, "/".join(["k" * 200] * 6)[: bucket.key_max_bytes]):
        store.put(key, b"x", generation=0)
        assert store.get(key).data == b"x"
        assert keys(store, key) == [key]


BAD_KEYS = ["", "a\0b", "a\nb", "a\rb", "\ud800", "k" * 1025, "é" * 513, ".well-known/acme-challenge/x", ".", ".."]


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
@pytest.mark.parametrize("method", ["get", "head", "put", "append", "delete"])
def test_a_key_that_no_store_could_hold_is_refused_by_every_method(store: ObjectStore, key: str, method: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get(key),
        "head": lambda: store.head(key),
        "put": lambda: store.put(key, b"", generation=0),
        "append": lambda: store.append(key, b"", generation=0),
        "delete": lambda: store.delete(key, generation=1),
    }
    with pytest.raises(ValueError, match="key"):
        calls[method]()


@pytest.mark.parametrize("prefix", [key for key in BAD_KEYS if key.strip(".")], ids=ascii)
def test_no_object_has_a_prefix_that_no_key_can_have(store: ObjectStore, prefix: str) -> None:
    store.put("a", b"", generation=0)
    assert keys(store, prefix) == []


def test_a_prefix_may_be_what_no_key_can_be(store: ObjectStore) -> None:
    for key in (".hidden", "..twice", ".a/b"):
        store.put(key, b"", generation=0)
    assert keys(store, ".") == ["..twice", ".a/b", ".hidden"]
    assert keys(store, "..") == ["..twice"]
    assert keys(store, start_after=".") == ["..twice", ".a/b", ".hidden"]


# Preconditions


def test_put_with_generation_zero_creates_and_never_replaces(store: ObjectStore) -> None:
    store.put("a", b"first", generation=0)
    with pytest.raises(PreconditionFailed):
        store.put("a", b"second", generation=0)
    assert store.get("a").data == b"first"


def test_put_replaces_the_whole_object_of_the_expected_generation_only(store: ObjectStore) -> None:
    first = store.put("a", b"a long first content", generation=0)
    second = store.put("a", b"short", generation=first.generation)
    assert store.get("a").data == b"short"
    assert second.size == 5
    with pytest.raises(PreconditionFailed):
        store.put("a", b"stale", generation=first.generation)
    assert told_by_get(store.get("a").meta) == told_by_get(second)


def test_append_adds_at_the_end_of_the_expected_generation_only(store: ObjectStore) -> None:
    first = store.append("a", b"one ", generation=0)
    second = store.append("a", b"two", generation=first.generation)
    assert (second.size, store.get("a").data) == (7, b"one two")
    for stale in (0, first.generation):
        with pytest.raises(PreconditionFailed):
            store.append("a", b"lost", generation=stale)
    assert store.get("a").data == b"one two"
    assert told_by_get(store.get("a").meta) == told_by_get(second)


def test_appending_nothing_is_a_new_generation_of_the_same_bytes(store: ObjectStore) -> None:
    first = store.append("a", b"", generation=0)
    second = store.append("a", b"", generation=first.generation)
    assert second.generation > first.generation
    assert store.get("a").data == b""


def test_delete_removes_the_expected_generation_only(store: ObjectStore) -> None:
    first = store.put("a", b"1", generation=0)
    second = store.put("a", b"2", generation=first.generation)
    for wrong in (0, first.generation):
        with pytest.raises(PreconditionFailed):
            store.delete("a", generation=wrong)
    assert store.get("a").data == b"2"
    store.delete("a", generation=second.generation)
    assert store.head("a") is None


@pytest.mark.parametrize("generation", [0, 12345])
def test_deleting_what_is_gone_is_success(store: ObjectStore, generation: int) -> None:
    meta = store.put("a/b", b"", generation=0)
    store.delete("a/b", generation=meta.generation)
    store.delete("a/b", generation=meta.generation)
    store.delete("never/was", generation=generation)


@pytest.mark.parametrize("method", ["put", "append"])
def test_a_write_that_expects_an_object_does_not_create_it(store: ObjectStore, method: str) -> None:
    gone = store.put("a", b"", generation=0)
    store.delete("a", generation=gone.generation)
    write = store.put if method == "put" else store.append
    for generation in (gone.generation, 12345):
        with pytest.raises(PreconditionFailed):
            write("a", b"x", generation=generation)
    assert store.head("a") is None


# Generations


def test_generations_strictly_increase_over_puts_appends_deletions_and_rebirths(store: ObjectStore) -> None:
    seen = [0]
    for _ in range(30):
        created = store.put("a", b"1", generation=0)
        replaced = store.put("a", b"2", generation=created.generation)
        appended = store.append("a", b"3", generation=replaced.generation)
        seen += [created.generation, replaced.generation, appended.generation]
        store.delete("a", generation=appended.generation)
    assert seen == sorted(set(seen))


def test_writing_the_same_bytes_again_is_a_new_generation(store: ObjectStore) -> None:
    first = store.put("a", b"same", generation=0)
    second = store.put("a", b"same", generation=first.generation)
    assert second.generation > first.generation


def test_updated_does_not_go_back_from_one_generation_to_the_next(store: ObjectStore) -> None:
    first = store.put("a", b"1", generation=0)
    second = store.append("a", b"2", generation=first.generation)
    third = store.put("a", b"3", generation=second.generation)
    assert 0 < first.updated <= second.updated <= third.updated


# Reading


def test_a_missing_object_is_not_found_by_get_and_none_by_head(store: ObjectStore) -> None:
    store.put("a/b", b"", generation=0)
    for key in ("a", "a/", "a/b/", "a/b/c", "a/c", "b"):
        with pytest.raises(NotFound):
            store.get(key)
        assert store.head(key) is None


@pytest.mark.parametrize(("start", "expected"), [(0, b"0123"), (1, b"123"), (3, b"3"), (4, b""), (99, b"")])
def test_get_from_an_offset_returns_the_rest_and_the_whole_size(
    store: ObjectStore, start: int, expected: bytes
) -> None:
    store.put("a", b"0123", generation=0)
    stored = store.get("a", start=start)
    assert (stored.data, stored.meta.size) == (expected, 4)


def test_a_negative_offset_is_refused(store: ObjectStore) -> None:
    store.put("a", b"0123", generation=0)
    with pytest.raises(ValueError, match="start"):
        store.get("a", start=-1)


def test_bytes_of_every_value_and_a_large_object_come_back_as_they_were(store: ObjectStore) -> None:
    data = bytes(range(256)) * 20_000
    meta = store.put("a", data, generation=0)
    assert meta.size == len(data)
    assert store.get("a").data == data
    assert store.get("a", start=5_000_000).data == data[5_000_000:]


def test_what_one_client_finished_every_client_sees_at_once(bucket: Bucket) -> None:
    one, two = bucket.open(), bucket.open()
    for number in range(20):
        meta = one.put(f"k/{number}", b"1", generation=0)
        assert told_by_get(two.get(f"k/{number}").meta) == told_by_get(meta)
        assert two.head(f"k/{number}") == meta
        assert [*two.list(f"k/{number}")] == [meta]
        meta = two.append(f"k/{number}", b"2", generation=meta.generation)
        assert one.get(f"k/{number}").data == b"12"
        one.delete(f"k/{number}", generation=meta.generation)
        assert two.head(f"k/{number}") is None
        assert [*two.list("k/")] == []


# Listing


@pytest.fixture
def filled(store: ObjectStore) -> ObjectStore:
    for key in ["a", "a!", "a.b", "a/b", "a/b/c", "a/b0", "a/c/d", "a0", "aa/b", "b/c", "é/x"]:
        store.put(key, b"", generation=0)
    return store


def test_a_listing_is_in_the_order_of_utf8_bytes(filled: ObjectStore) -> None:
    assert keys(filled) == ["a", "a!", "a.b", "a/b", "a/b/c", "a/b0", "a/c/d", "a0", "aa/b", "b/c", "é/x"]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("a/", ["a/b", "a/b/c", "a/b0", "a/c/d"]),
        ("a/b", ["a/b", "a/b/c", "a/b0"]),
        ("a/b/", ["a/b/c"]),
        ("a/b/c", ["a/b/c"]),
        ("a/b/c/", []),
        ("aa", ["aa/b"]),
        ("b", ["b/c"]),
        ("é", ["é/x"]),
        ("c", []),
        ("/", []),
        ("..", []),
        ("../", []),
        ("a//", []),
        (".", []),
    ],
)
def test_a_prefix_need_not_end_at_a_folder(filled: ObjectStore, prefix: str, expected: list[str]) -> None:
    assert keys(filled, prefix) == expected


# One bucket is filled for all of the many combinations, because filling it is what takes time.


def test_a_listing_starts_after_any_key_whether_it_exists_or_not(filled: ObjectStore) -> None:
    prefixes = ["", "a", "a/", "a/b", "aa", "b", "x"]
    starts = ["", "a", "a!", "a.", "a/", "a/b", "a/b/", "a/b/b", "a/b/c", "a/c", "b", "b/", "zz"]
    whole = keys(filled)
    expected = {
        (prefix, start): [key for key in whole if key.startswith(prefix) and key > start]
        for prefix, start in itertools.product(prefixes, starts)
    }
    assert {(prefix, start): keys(filled, prefix, start) for prefix, start in expected} == expected


def test_a_listing_ends_before_any_key_whether_it_exists_or_not(filled: ObjectStore) -> None:
    prefixes = ["", "a", "a/", "a/b", "b", "x"]
    ends = ["a", "a!", "a.", "a/", "a/b", "a/b/", "a/b/b", "a/c", "b", "b/", "zz"]
    whole = keys(filled)
    expected = {
        (prefix, start, end): [key for key in whole if key.startswith(prefix) and start < key < end]
        for prefix, start, end in itertools.product(prefixes, ["", "a/", "a/b/b"], ends)
    }
    found = {
        (prefix, start, end): [meta.key for meta in filled.list(prefix, start_after=start, end_before=end)]
        for prefix, start, end in expected
    }
    assert found == expected


def test_a_listing_tells_what_head_tells(filled: ObjectStore) -> None:
    for meta in filled.list(""):
        assert filled.head(meta.key) == meta


def test_an_object_that_stays_is_in_every_listing_while_others_come_and_go(bucket: Bucket) -> None:
    store = bucket.open()
    staying = {"m/a", "m/n/o", "m/z", "m//hidden"}
    for key in staying:
        store.put(key, b"", generation=0)
    done = threading.Event()

    def come_and_go() -> None:
        other = bucket.open()
        while not done.is_set():
            for key in ("m/n/p", "m/b", "m/b/c", "m/q/r"):
                other.delete(key, generation=other.put(key, b"", generation=0).generation)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(come_and_go)
        try:
            for _ in range(60):
                found = keys(store, "m/")
                assert staying <= set(found)
                assert found == sorted(found)
        finally:
            done.set()
        running.result()


# Concurrency


def test_of_many_creators_exactly_one_wins(bucket: Bucket) -> None:
    def create(number: int) -> bool:
        store = bucket.connect()
        try:
            store.put("claim", b"%d" % number, generation=0)
        except PreconditionFailed:
            return False
        except StoreUnavailable:
            return store.get("claim").data == b"%d" % number
        return True

    with ThreadPoolExecutor(8) as pool:
        wins = [*pool.map(create, range(40))]
    assert wins.count(True) == 1
    assert bucket.open().get("claim").data == b"%d" % wins.index(True)


def test_compare_and_swap_from_many_threads_loses_no_update(bucket: Bucket) -> None:
    store = bucket.connect()
    bucket.open().put("names", b"", generation=0)

    def sign(name: bytes) -> None:
        """Adds a name once; what cannot be known is looked up in the next round."""
        while name not in (stored := store.get("names")).data.split():
            with contextlib.suppress(PreconditionFailed, StoreUnavailable):
                store.put("names", stored.data + name + b"\n", generation=stored.meta.generation)
                assert name in store.get("names").data.split(), "a write that had landed was lost"

    names = [b"name-%d" % number for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(sign, names)] == [None] * 100
    assert sorted(store.get("names").data.split()) == sorted(names)


def test_a_reader_never_sees_half_a_put_nor_a_generation_that_never_was(bucket: Bucket) -> None:
    store = bucket.open()
    meta = store.put("a", b"0" * 100_000, generation=0)
    written = {meta.generation: b"0"}
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set() or not reads:
            stored = store.get("a")
            assert len(stored.data) == stored.meta.size == 100_000
            assert len(set(stored.data)) == 1
            seen.setdefault(stored.meta.generation, stored.data[:1])
            looked_up.add(store.head("a"))
            looked_up.update(store.list("a"))
            reads += 1
        return reads

    seen: dict[int, bytes] = {}
    looked_up: set[ObjectMeta | None] = set()
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(1, 100):
                digit = b"%d" % (number % 10)
                meta = store.put("a", digit * 100_000, generation=meta.generation)
                written[meta.generation] = digit
        finally:
            done.set()
        assert all(reader.result() for reader in readers)
    assert seen.items() <= written.items()
    assert {meta and meta.generation for meta in looked_up} <= set(written)
