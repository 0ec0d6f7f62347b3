"""Writes to S3 whose answer is lost, and writes that race with others."""

from __future__ import annotations

import pytest

from bastion.adapters.s3.store import S3Store
from bastion.core.errors import PreconditionFailed
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.net.http1 import Request, Response
from tests.support.gcs_storage import HASTY
from tests.support.s3_stub import S3Stub, refusal

MORE_THAN_A_PART = b"x" * (5 * 1024 * 1024)


@pytest.fixture
def store(stub: S3Stub) -> S3Store:
    return stub.store(stub.new_bucket(), HASTY)


def lose(stub: S3Stub, method: str, *, path: str = "") -> None:
    stub.faults.replace([FaultRule(fault="lost-reply", method=method, path=path, nth="1")])


def test_a_write_whose_answer_is_lost_is_recognized(stub: S3Stub, store: S3Store) -> None:
    lose(stub, "PUT")
    first = store.put("a", b"1", generation=0)
    assert store.head("a") == first
    lose(stub, "PUT")
    second = store.put("a", b"2", generation=first.generation)
    assert (store.head("a"), store.get("a").data) == (second, b"2")


def test_an_append_whose_answer_is_lost_lands_once(stub: S3Stub, store: S3Store) -> None:
    first = store.put("a", MORE_THAN_A_PART, generation=0)
    lose(stub, "POST", path="uploadId")
    second = store.append("a", b"end", generation=first.generation)
    assert store.head("a") == second
    assert store.get("a", start=len(MORE_THAN_A_PART)).data == b"end"


def test_a_deletion_whose_answer_is_lost_is_success(stub: S3Stub, store: S3Store) -> None:
    first = store.put("a", b"1", generation=0)
    lose(stub, "DELETE")
    store.delete("a", generation=first.generation)
    assert store.head("a") is None


def test_a_conflict_with_another_write_is_tried_again(stub: S3Stub, store: S3Store) -> None:
    conflicts = [refusal(409, "ConditionalRequestConflict")]

    def conflict(request: Request) -> Response | None:
        return conflicts.pop() if request.method == "PUT" and conflicts else None

    stub.before = conflict
    assert store.head("a") is None
    assert store.put("a", b"1", generation=0) == store.head("a")


def test_a_write_that_is_replaced_before_its_time_is_looked_up_has_landed(stub: S3Stub, store: S3Store) -> None:
    other = stub.store(next(iter(stub.buckets)))
    raced = []

    def race(request: Request) -> Response | None:
        if request.method == "HEAD" and not raced:
            raced.append(other)
            present = other.head("a")
            assert present is not None
            other.put("a", b"theirs", generation=present.generation)
        return None

    stub.before = race
    ours = store.put("a", b"ours", generation=0)
    assert (ours.size, store.get("a").data) == (4, b"theirs")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"again", generation=ours.generation)


def test_a_deletion_of_what_was_deleted_and_made_again_of_the_same_bytes_is_refused(stub: S3Stub) -> None:
    stub.let_time_pass()
    store = stub.store(stub.new_bucket())
    first = store.put("a", b"same", generation=0)
    store.delete("a", generation=first.generation)
    second = store.put("a", b"same", generation=0)
    assert second.generation != first.generation
    with pytest.raises(PreconditionFailed):
        store.delete("a", generation=first.generation)
    assert store.head("a") == second


def test_an_upload_that_failed_leaves_no_parts(stub: S3Stub, store: S3Store) -> None:
    first = store.put("a", MORE_THAN_A_PART, generation=0)
    other = stub.store(next(iter(stub.buckets)))
    second = other.append("a", b"2", generation=first.generation)
    with pytest.raises(PreconditionFailed):
        store.append("a", b"lost", generation=first.generation)
    assert stub.uploads == {}
    assert other.head("a") == second
