"""Many clients of one bucket at once, on every adapter."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from bastion.core.errors import PreconditionFailed, StoreUnavailable
from bastion.ports import ObjectMeta
from tests.support.object_stores import Bucket


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
