"""How many requests each operation takes, and of which kind: S3 bills them."""

from __future__ import annotations

import pytest

from bastion.adapters.s3.store import S3Store
from tests.support.s3_stub import S3Stub


@pytest.fixture
def store(stub: S3Stub) -> S3Store:
    return stub.store(stub.new_bucket())


def test_each_operation_takes_as_many_requests_as_it_says(stub: S3Stub, store: S3Store) -> None:
    def asked() -> list[str]:
        kinds, stub.asked = stub.asked, []
        return kinds

    meta = store.put("a", b"1", generation=0)
    assert asked() == ["PUT", "HEAD"]
    meta = store.put("a", b"2", generation=meta.generation)
    assert asked() == ["PUT", "HEAD"]
    store.get("a")
    assert asked() == ["GET"]
    meta = store.append("a", b"3", generation=meta.generation)
    assert asked() == ["GET", "PUT", "HEAD"]
    other = stub.store(next(iter(stub.buckets)))
    meta = other.put("a", b"x" * (5 * 1024 * 1024), generation=meta.generation)
    assert asked() == ["HEAD", "PUT", "HEAD"]
    meta = other.append("a", b"y", generation=meta.generation)
    assert asked() == ["CREATE", "COPY", "PART", "COMPLETE", "HEAD"]
    assert [*store.list("")] == [meta]
    assert asked() == ["LIST"]
    store.delete("a", generation=meta.generation)
    assert asked() == ["HEAD", "DELETE"]


def test_a_listing_asks_for_the_next_page_when_it_is_reached_and_stops_at_its_end(stub: S3Stub, store: S3Store) -> None:
    for number in range(7):
        store.put(f"a/{number}", b"", generation=0)
    stub.pages_of, stub.asked = 2, []
    listed = store.list("a/")
    assert [next(listed).key, next(listed).key] == ["a/0", "a/1"]
    assert stub.asked == ["LIST"]
    assert next(listed).key == "a/2"
    assert stub.asked == ["LIST"] * 2
    stub.asked = []
    assert [meta.key for meta in store.list("a/", start_after="a/1", end_before="a/4")] == ["a/2", "a/3"]
    assert stub.asked == ["LIST"] * 2
