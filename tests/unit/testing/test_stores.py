"""The stores that tests lean on: counting and failing exactly as they say."""

from __future__ import annotations

import contextlib

import pytest

from bastion.core.errors import NotFound, PreconditionFailed, StoreUnavailable
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FailedCall, Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore


def test_the_memory_store_takes_time_from_its_clock_and_counts_generations() -> None:
    now = 100.0
    store = MemoryStore(now=lambda: now)
    first = store.put("a", b"", generation=0)
    now = 50.0
    second = store.append("a", b"x", generation=first.generation)
    assert (first.updated, second.updated) == (100.0, 50.0)
    assert (first.generation, second.generation) == (1, 2)


def test_a_listing_of_the_memory_store_is_of_one_moment(store: MemoryStore) -> None:
    store.put("a", b"", generation=0)
    listing = store.list("")
    store.put("b", b"", generation=0)
    assert [meta.key for meta in listing] == ["a"]


def test_the_counting_store_counts_each_method_and_keeps_the_keys() -> None:
    store = CountingStore(MemoryStore())
    meta = store.put("a", b"", generation=0)
    store.append("a", b"x", generation=meta.generation)
    store.get("a")
    store.head("b")
    list(store.list("a/"))
    store.delete("c", generation=1)
    assert store.calls == {"put": 1, "append": 1, "get": 1, "head": 1, "list": 1, "delete": 1}
    assert (store.written, store.read, store.listed, store.deleted) == (["a", "a"], ["a"], ["a/"], ["c"])
    assert store.writes == 3
    store.reset()
    assert (store.calls, store.written, store.writes) == ({}, [], 0)


def test_the_counting_store_counts_calls_that_fail() -> None:
    store = CountingStore(MemoryStore())
    with pytest.raises(NotFound):
        store.get("a")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"", generation=5)
    assert store.calls == {"get": 1, "put": 1}


def test_a_lost_request_has_no_effect_and_a_lost_reply_has_one() -> None:
    below = MemoryStore()
    store = FaultyStore(below)
    store.fail_next("put", fault=Fault.BEFORE)
    with pytest.raises(StoreUnavailable, match="request lost"):
        store.put("a", b"", generation=0)
    assert below.head("a") is None
    store.fail_next("put", fault=Fault.AFTER)
    with pytest.raises(StoreUnavailable, match="reply lost"):
        store.put("a", b"", generation=0)
    assert below.head("a") is not None
    assert [call.fault for call in store.failed] == [Fault.BEFORE, Fault.AFTER]


def test_an_ordered_fault_waits_for_its_method_and_key() -> None:
    store = FaultyStore(MemoryStore())
    store.fail_next("delete", key="a", times=2)
    store.put("a", b"", generation=0)
    store.delete("b", generation=1)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            store.delete("a", generation=1)
    store.delete("a", generation=1)
    assert store.failed == [FailedCall(method="delete", key="a", fault=Fault.BEFORE)] * 2


def test_a_listing_whose_reply_is_lost_breaks_off_half_way() -> None:
    below = MemoryStore()
    for key in "abcd":
        below.put(key, b"", generation=0)
    store = FaultyStore(below)
    store.fail_next("list", fault=Fault.AFTER)
    found = []
    with pytest.raises(StoreUnavailable):
        for meta in store.list(""):
            found.append(meta.key)  # noqa: PERF401 - a comprehension would lose what came before the error
    assert found == ["a", "b"]


def _history(seed: int, *, pause: bool = False) -> list[bool]:
    store = FaultyStore(MemoryStore(), seed=seed, before=0.2, after=0.2)
    failures = []
    for number in range(100):
        if pause and number == 50:
            store.enabled = False
            store.head("a")
            store.enabled = True
        before = len(store.failed)
        with contextlib.suppress(StoreUnavailable):
            store.head("a")
        failures.append(len(store.failed) > before)
    return failures


def test_the_same_seed_gives_the_same_faults_and_a_disabled_store_uses_none_up() -> None:
    assert _history(1) == _history(1) == _history(1, pause=True)
    assert _history(1) != _history(2)
    assert 20 < sum(_history(1)) < 60
