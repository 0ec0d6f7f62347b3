"""What a listing has in it, and in which order, on every adapter."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bastion.ports import ObjectStore
from tests.support.object_stores import Bucket, keys


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
def test_a_prefix_need_not_end_at_a_folder(
    bucket: Bucket, filled: ObjectStore, prefix: str, expected: list[str]
) -> None:
    if not bucket.takes(prefix.removesuffix("/")):
        pytest.skip("this server cannot have such a key")
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
    staying = {*filter(bucket.takes, ("m/a", "m/n/o", "m/z", "m//hidden"))}
    for key in staying:
        store.put(key, b"", generation=0)
    done = threading.Event()

    def come_and_go() -> None:
        other = bucket.open()
        while not done.is_set():
            for key in ("m/n/p", *(("m/b",) if bucket.beside_folders else ()), "m/b/c", "m/q/r"):
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
