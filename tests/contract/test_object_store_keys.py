"""Which keys an object may have, on every adapter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bastion.ports import ObjectStore
from tests.support.object_stores import Bucket, keys, told_by_get

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


@pytest.mark.parametrize("key", NASTY_KEYS, ids=ascii)
def test_every_key_can_be_stored_read_listed_and_deleted(bucket: Bucket, store: ObjectStore, key: str) -> None:
    if not bucket.takes(key):
        pytest.skip("this server cannot have such a key")
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
def test_all_nasty_keys_live_side_by_side(bucket: Bucket, store: ObjectStore, order: str) -> None:
    nasty_keys = [key for key in NASTY_KEYS if bucket.takes(key)]
    if not bucket.beside_folders:
        nasty_keys = [key for key in nasty_keys if not any(each.startswith(f"{key}/") for each in nasty_keys)]
    for key in nasty_keys if order == "ascending" else reversed(nasty_keys):
        store.put(key, key.encode(), generation=0)
    assert keys(store) == nasty_keys
    for key in nasty_keys:
        assert store.get(key).data == key.encode()
        assert keys(store, key)[0] == key
    for index, key in enumerate(nasty_keys):
        meta = store.head(key)
        assert meta is not None
        store.delete(key, generation=meta.generation)
        assert keys(store) == nasty_keys[index + 1 :]


def test_a_key_may_have_its_full_length(bucket: Bucket) -> None:
    store = bucket.open()
    for key in filter(bucket.takes, ("k" * bucket.key_max_bytes, "/".join(["k" * 200] * 6)[: bucket.key_max_bytes])):
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
