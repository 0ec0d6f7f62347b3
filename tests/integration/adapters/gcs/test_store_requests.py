"""What each operation asks of the service: these requests and no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs.api import Page
from bastion.adapters.gcs.store import GcsStore
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import NotFound, PreconditionFailed
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.net.http1 import Request
from bastion.testing.manual_clock import ManualClock
from tests.support.gcs_storage import Storage


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    storage = Storage(tmp_path_factory.mktemp("buckets"))
    storage.open()
    yield storage
    storage.close()


@pytest.fixture
def bucket(storage: Storage) -> str:
    return storage.new_bucket()


@pytest.fixture
def store(storage: Storage, bucket: str) -> GcsStore:
    return storage.store(bucket, patience=Patience(deadline_seconds=5))


@pytest.fixture
def asks(storage: Storage) -> Callable[[Callable[[], object]], list[str]]:
    """What an operation asks; that it is refused is no matter."""

    def of(operation: Callable[[], object]) -> list[str]:
        storage.forget()
        with contextlib.suppress(NotFound, PreconditionFailed):
            operation()
        return list(storage.asked)

    return of


Asks = Callable[[Callable[[], object]], list[str]]


def test_a_get_is_one_request(store: GcsStore, asks: Asks) -> None:
    store.put("k", b"0123", generation=0)
    assert asks(lambda: store.get("k")) == ["media"]
    assert asks(lambda: store.get("k", start=2)) == ["media"]
    assert asks(lambda: store.get("no")) == ["media"]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A service that sends neither Last-Modified nor a size of 0."""
    storage = Storage(tmp_path_factory.mktemp("buckets"), bare=True)
    storage.open()
    yield storage
    storage.close()


def test_a_get_without_a_time_in_its_answer_is_two_and_tells_the_time_of_what_was_read(bare: Storage) -> None:
    store = bare.store(bare.new_bucket())
    written = store.put("k", b"0123", generation=0)
    bare.forget()

    whole, rest = store.get("k"), store.get("k", start=2)

    assert bare.asked == ["media", "metadata"] * 2
    assert [whole.meta, rest.meta] == [written] * 2
    assert [whole.data, rest.data] == [b"0123", b"23"]


def test_an_object_without_a_size_in_its_metadata_is_empty(bare: Storage) -> None:
    store = bare.store(bare.new_bucket())
    written = store.put("k", b"", generation=0)

    assert written.size == 0
    assert [store.head("k"), store.get("k").meta, *store.list("")] == [written] * 3


def test_an_object_that_is_replaced_between_its_bytes_and_its_time_is_read_again(bare: Storage) -> None:
    bucket = bare.new_bucket()
    store, other = bare.store(bucket), bare.store(bucket)
    first = store.put("k", b"old", generation=0)
    replaced: list[ObjectMeta] = []

    def replace_once(request: Request) -> None:
        if not replaced and "&fields=" in request.target and f"generation={first.generation}" in request.target:
            replaced.append(first)
            replaced[0] = other.put("k", b"new", generation=first.generation)

    bare.before = replace_once
    try:
        read = store.get("k")
    finally:
        bare.before = None

    assert (read.data, [read.meta]) == (b"new", replaced)


def test_a_get_from_past_the_end_is_two(store: GcsStore, asks: Asks) -> None:
    store.put("k", b"0123", generation=0)
    assert asks(lambda: store.get("k", start=4)) == ["media", "metadata"]


def test_a_head_is_one_request_whether_there_is_an_object_or_not(store: GcsStore, asks: Asks) -> None:
    store.put("k", b"", generation=0)
    assert asks(lambda: store.head("k")) == ["metadata"]
    assert asks(lambda: store.head("no")) == ["metadata"]


def test_a_put_is_one_request_whether_it_lands_or_not(store: GcsStore, asks: Asks) -> None:
    assert asks(lambda: store.put("k", b"1", generation=0)) == ["upload"]
    assert asks(lambda: store.put("k", b"1", generation=0)) == ["upload"]
    assert asks(lambda: store.put("large", b"1" * 8 * 1024 * 1024, generation=0)) == ["upload"]


def test_a_put_beyond_8_mib_is_a_session_and_a_request_for_each_16_mib(store: GcsStore, asks: Asks) -> None:
    data = bytes(range(256)) * (17 * 4096)
    assert asks(lambda: store.put("k", data, generation=0)) == ["upload", "chunk", "chunk"]
    assert store.get("k").data == data
    assert asks(lambda: store.put("k", data, generation=0))[0] == "upload"
    with pytest.raises(PreconditionFailed):
        store.put("k", data, generation=0)


def test_an_append_is_three_requests_and_leaves_no_part(store: GcsStore, asks: Asks, storage: Storage) -> None:
    assert asks(lambda: store.append("k", b"one ", generation=0)) == ["upload"]
    generation = store.get("k").meta.generation
    assert asks(lambda: store.append("k", b"two", generation=generation)) == ["upload", "compose", "delete"]
    assert asks(lambda: store.append("k", b"stale", generation=generation)) == ["upload", "compose", "delete"]
    assert store.get("k").data == b"one two"
    assert [*store.list("bastion-parts/")] == []


def test_a_delete_is_one_request_and_one_more_if_something_else_is_there(store: GcsStore, asks: Asks) -> None:
    meta = store.put("k", b"", generation=0)
    assert asks(lambda: store.delete("k", generation=meta.generation + 1)) == ["delete", "metadata"]
    assert asks(lambda: store.delete("k", generation=meta.generation)) == ["delete"]
    assert asks(lambda: store.delete("k", generation=meta.generation)) == ["delete"]


def test_a_listing_asks_for_a_page_when_it_is_reached(storage: Storage, bucket: str, store: GcsStore) -> None:
    folder = storage.folder / bucket / "many"
    folder.mkdir()
    names = [f"many/{number:04}" for number in range(2001)]
    for name in names:
        (storage.folder / bucket / name).write_bytes(b"")
    storage.forget()
    assert [meta.key for meta in islice(store.list("many/"), 1000)] == names[:1000]
    assert storage.asked == ["page"]
    assert [meta.key for meta in store.list("many/")] == names
    assert storage.asked == ["page"] * 4
    storage.forget()
    assert [meta.key for meta in store.list("many/", start_after=names[1200], end_before=names[1300])] == names[
        1201:1300
    ]
    assert storage.asked == ["page"]
    assert next(store.list("many/", start_after=names[-1]), None) is None


def test_a_page_that_fails_is_asked_for_again_and_no_other(storage: Storage, bucket: str) -> None:
    folder = storage.folder / bucket / "many"
    folder.mkdir()
    for number in range(2001):
        (folder / f"{number:04}").write_bytes(b"")
    store = storage.store(bucket, clock=ManualClock())
    storage.forget()
    storage.faults.replace([FaultRule(fault="503", path="pageToken", nth="1")])
    try:
        assert len([*store.list("many/")]) == 2001
    finally:
        storage.faults.replace(())
    tokens = [parse_qs(urlsplit(target).query).get("pageToken") for target in storage.targets]
    assert len(tokens) == 4
    assert tokens[1] == tokens[2]


def test_only_what_is_used_is_asked_for(storage: Storage, store: GcsStore) -> None:
    store.put("k", b"", generation=0)
    storage.forget()
    store.head("k")
    [*store.list("k")]
    fields = [parse_qs(urlsplit(target).query)["fields"][0] for target in storage.targets]
    assert fields == ["name,size,generation,updated,metadata", "items(name,size,generation,updated),nextPageToken"]


def test_what_an_append_left_behind_is_in_no_listing_but_its_own(storage: Storage, bucket: str) -> None:
    store = storage.store(bucket, clock=ManualClock())
    meta = store.put("k", b"1", generation=0)
    storage.faults.replace([FaultRule(fault="503", method="DELETE")])
    try:
        store.append("k", b"2", generation=meta.generation)
    finally:
        storage.faults.replace(())
    assert [meta.key for meta in store.list("")] == ["k"]
    assert [meta.size for meta in store.list("bastion-parts/")] == [1]


def test_a_name_with_a_nul_that_somebody_gave_an_object_is_in_no_listing(
    store: GcsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The endpoint refuses such a name; the service has no rule against it.
    store.put("a-good", b"", generation=0)
    store.put("a-null", b"", generation=0)
    page = store._api.page

    def with_a_nul(*arguments: Any) -> Page:
        found = page(*arguments)
        metas = tuple(replace(meta, key=meta.key.replace("a-null", "a\0null")) for meta in found.metas)
        return replace(found, metas=metas)

    monkeypatch.setattr(store._api, "page", with_a_nul)
    assert [meta.key for meta in store.list("")] == ["a-good"]


def test_writes_of_one_key_are_paced_and_reads_are_not(storage: Storage, bucket: str) -> None:
    clock = ManualClock()
    store = storage.store(bucket, clock=clock, interval=1.0)
    begun = clock.monotonic()
    meta = store.put("k", b"1", generation=0)
    for _ in range(3):
        meta = store.append("k", b"2", generation=meta.generation)
        store.get("k")
    store.delete("k", generation=meta.generation)
    assert clock.monotonic() - begun == 4.0


def test_what_people_read_is_stored_as_text(storage: Storage, bucket: str, store: GcsStore) -> None:
    kinds = {}
    for key, data in {
        "log": "2026-01-02T03:04:05Z stdout F schön\n".encode(),
        "json": b'{"status": "ACTIVE"}',
        "empty": b"",
        "cut": b"x" * 1023 + "é".encode(),
        "gzip": b"\x1f\x8b\x08\x00",
        "latin": b"caf\xe9 noir",
        "nul": b"a\0b",
    }.items():
        meta = store.put(key, data, generation=0)
        store.append(key, data, generation=meta.generation)
        kinds[key] = storage.client.bucket(bucket).get_blob(key).content_type.split(";")[0]
    binary = "application/octet-stream"
    assert kinds == {
        **dict.fromkeys(["log", "json", "empty", "cut"], "text/plain"),
        **dict.fromkeys(["gzip", "latin", "nul"], binary),
    }
