"""What tensorstore does to a bucket of the storage endpoint: `tensorstore_session.py URL PART`.

A process of its own, because tensorstore reads the endpoint's address from its environment when it is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

os.environ["TENSORSTORE_GCS_HTTP_URL"] = sys.argv[1]
# Otherwise it looks for a metadata server first, which takes seconds.
os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "any"

import numpy as np
import tensorstore as ts

MISSING = ts.KvStore.TimestampedStorageGeneration(generation=b"", time=0.0).generation


def conditional_writes() -> None:
    store = ts.KvStore.open("gs://lake/conditional/").result()
    first = store.write("a", b"1").result().generation
    assert store.read("a").result().stamp.generation == first
    second = store.write("a", b"2", if_equal=first).result().generation
    refused = store.write("a", b"3", if_equal=first).result().generation
    assert second not in (first, refused)
    assert store.read("a").result().value == b"2"
    assert store.read("a", if_not_equal=second).result().state == "unspecified"
    assert store.read("none").result().state == "missing"
    assert store.write("a", None, if_equal=first).result().generation != second
    assert store.read("a").result().value == b"2"
    store.write("a", None, if_equal=second).result()
    assert store.read("a").result().state == "missing"


def counting_together() -> None:
    """Eight writers add one to the same value; a lost update would be missing from the sum."""
    store = ts.KvStore.open("gs://lake/counting/").result()
    store.write("sum", b"0").result()

    def add(_: int) -> None:
        while True:
            read = store.read("sum").result()
            value = str(int(read.value) + 1).encode()
            if store.write("sum", value, if_equal=read.stamp.generation).result().generation != MISSING:
                return

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(add, range(64)))
    assert store.read("sum").result().value == b"64"


def listing() -> None:
    store = ts.KvStore.open("gs://lake/listing/").result()
    names = [f"{folder}/{number}".encode() for folder in "abc" for number in range(5)]
    for name in names:
        store.write(name, b"x").result()
    assert sorted(store.list().result()) == names
    part = ts.KvStore.KeyRange("a/3", "b/2")
    assert sorted(store.list(part).result()) == [b"a/3", b"a/4", b"b/0", b"b/1"]
    store.delete_range(part).result()
    assert sorted(store.list().result()) == [name for name in names if not b"a/3" <= name < b"b/2"]


def ocdbt() -> None:
    place = {"driver": "ocdbt", "base": "gs://lake/ocdbt/"}
    store = ts.KvStore.open(place).result()
    with ts.Transaction() as transaction:
        for number in range(100):
            store.with_transaction(transaction)[f"key-{number:03}"] = b"v" * number
    store["key-007"] = b"other"
    again = ts.KvStore.open(place, context=ts.Context()).result()
    assert len(again.list().result()) == 100
    assert (again["key-007"], again["key-099"]) == (b"other", b"v" * 99)


def _array(driver: str) -> None:
    values = np.arange(300 * 200, dtype=np.float32).reshape(300, 200)
    place = {"driver": driver, "kvstore": f"gs://lake/array-{driver}/"}
    array = ts.open(
        place,
        create=True,
        dtype=ts.float32,
        shape=values.shape,
        chunk_layout=ts.ChunkLayout(chunk_shape=[64, 64]),
    ).result()
    array[...] = values
    array[10:20, 30:40] = 7
    values[10:20, 30:40] = 7
    again = ts.open(place, context=ts.Context()).result()
    assert np.array_equal(again.read().result(), values)
    assert np.array_equal(again[5:90, 60:70].read().result(), values[5:90, 60:70])


def zarr() -> None:
    _array("zarr")


def zarr3() -> None:
    _array("zarr3")


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part for part in (conditional_writes, counting_together, listing, ocdbt, zarr, zarr3)
}

if __name__ == "__main__":
    PARTS[sys.argv[2]]()
