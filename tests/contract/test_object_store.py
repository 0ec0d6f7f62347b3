"""The contract of `bastion.ports.ObjectStore`, sentence by sentence, on every adapter (`object_stores.py`).

Here are preconditions, generations and reading; keys, listings and races have files of their own.
"""

from __future__ import annotations

import inspect
import itertools
import time

import pytest

from bastion.core import limits
from bastion.core.errors import NotFound, ObjectTooLarge, PreconditionFailed
from bastion.ports import ObjectStore
from tests.support.object_stores import Bucket, told_by_get

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


def test_appending_nothing_is_a_new_generation_of_the_same_bytes(bucket: Bucket, store: ObjectStore) -> None:
    first = store.append("a", b"", generation=0)
    second = store.append("a", b"", generation=first.generation)
    assert second.generation > first.generation or not bucket.ordered
    assert store.head("a") == second
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


def test_generations_strictly_increase_over_puts_appends_deletions_and_rebirths(
    bucket: Bucket, store: ObjectStore
) -> None:
    seen = [0]
    for _ in range(30 if bucket.ordered else 3):
        created = store.put("a", b"1", generation=0)
        replaced = store.put("a", b"2", generation=created.generation)
        appended = store.append("a", b"3", generation=replaced.generation)
        seen += [created.generation, replaced.generation, appended.generation]
        store.delete("a", generation=appended.generation)
    if bucket.ordered:
        assert seen == sorted(set(seen))
    else:
        assert all(former != later for former, later in itertools.pairwise(seen))


def test_writing_the_same_bytes_again_is_a_new_generation(bucket: Bucket, store: ObjectStore) -> None:
    first = store.put("a", b"same", generation=0)
    if not bucket.ordered:
        time.sleep(1 - time.time() % 1)  # until the next second
    second = store.put("a", b"same", generation=first.generation)
    assert second.generation > first.generation


def test_updated_does_not_go_back_from_one_generation_to_the_next(store: ObjectStore) -> None:
    first = store.put("a", b"1", generation=0)
    second = store.append("a", b"2", generation=first.generation)
    third = store.put("a", b"3", generation=second.generation)
    assert 0 < first.updated <= second.updated <= third.updated


# Reading


def test_a_missing_object_is_not_found_by_get_and_none_by_head(bucket: Bucket, store: ObjectStore) -> None:
    store.put("a/b", b"", generation=0)
    for key in filter(bucket.takes, ("a", "a/", "a/b/", "a/b/c", "a/c", "b")):
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


@pytest.mark.parametrize(
    ("start", "size", "expected"),
    [(0, 3, b"012"), (2, 3, b"234"), (7, 3, b"789"), (8, 5, b"89"), (0, 99, b"0123456789"), (10, 1, b""), (99, 9, b"")],
)
def test_a_range_has_its_bytes_and_the_whole_size(store: ObjectStore, start: int, size: int, expected: bytes) -> None:
    meta = store.put("k", b"0123456789", generation=0)
    stored = store.get_range("k", start=start, size=size)
    assert (stored.data, stored.meta.size, stored.meta.generation) == (expected, 10, meta.generation)


def test_a_range_of_nothing_or_of_a_missing_object_is_refused(store: ObjectStore) -> None:
    store.put("empty", b"", generation=0)
    assert store.get_range("empty", start=0, size=5).data == b""
    with pytest.raises(ValueError, match="at least one"):
        store.get_range("empty", start=0, size=0)
    with pytest.raises(NotFound):
        store.get_range("missing", start=0, size=5)


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


# Bounded reads


def test_no_more_is_read_than_the_reader_takes(store: ObjectStore) -> None:
    store.put("a", b"0123456789", generation=0)
    assert store.get("a", max_bytes=10).data == b"0123456789"
    for most in (9, 0):
        with pytest.raises(ObjectTooLarge, match="has 10 bytes to read; the maximum is"):
            store.get("a", max_bytes=most)


def test_what_lies_before_the_start_does_not_count(store: ObjectStore) -> None:
    store.put("a", b"0123456789", generation=0)
    stored = store.get("a", start=7, max_bytes=3)
    assert (stored.data, stored.meta.size) == (b"789", 10)
    assert store.get("a", start=10, max_bytes=0).data == b""
    with pytest.raises(ObjectTooLarge):
        store.get("a", start=6, max_bytes=3)


def test_without_a_bound_of_its_own_a_read_has_one(store: ObjectStore) -> None:
    parameters = inspect.signature(type(store).get).parameters
    assert parameters["max_bytes"].default == limits.READ_MAX_BYTES
