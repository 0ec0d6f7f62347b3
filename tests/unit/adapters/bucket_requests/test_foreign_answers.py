"""Answers that are not the storage service's, such as a proxy's or a captive portal's: the store is unavailable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bastion.core.errors import StoreUnavailable
from bastion.ports import ObjectStore
from tests.fuzz.cloud_targets import gcs_store, s3_store

OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", start=1, size=2),
    "head": lambda store: store.head("k"),
    "list": lambda store: [*store.list("p/")],
    "put": lambda store: store.put("k", b"data", generation=0),
    "delete": lambda store: store.delete("k", generation=5),
}
HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Please log in</html>"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}"
LIST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[1]"
DEEP = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"[" * 100_000
NUMBERS = b'HTTP/1.1 200 OK\r\n\r\n{"name": "k", "size": "4", "generation": "' + b"9" * 5000 + b'", "updated": "x"}'
ERROR = b'HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\n\r\n"upstream"'
CONDITION = b"HTTP/1.1 412 Precondition Failed\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<html>404</html>"


@pytest.mark.parametrize("answer", [EMPTY, LIST, DEEP, NUMBERS, ERROR], ids=["empty", "list", "deep", "numbers", "502"])
@pytest.mark.parametrize("operation", ["head", "put"])
def test_json_of_another_form_from_cloud_storage_is_unavailability(operation: str, answer: bytes) -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](gcs_store(answer))


@pytest.mark.parametrize("answer", [LIST, DEEP, ERROR], ids=["list", "deep", "502"])
def test_json_of_another_form_is_no_listing(answer: bytes) -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS["list"](gcs_store(answer))


@pytest.mark.parametrize("operation", ["head", "list", "put"])
def test_html_instead_of_an_answer_of_s3_is_unavailability_and_no_empty_listing(operation: str) -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](s3_store(HTML))


@pytest.mark.parametrize("store", [gcs_store, s3_store])
@pytest.mark.parametrize("operation", ["get", "get_range", "list"])
def test_a_refused_condition_that_nobody_set_is_unavailability(
    store: Callable[[bytes], ObjectStore], operation: str
) -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](store(CONDITION))


def test_a_listing_that_does_not_exist_is_unavailability_and_not_an_empty_bucket() -> None:
    with pytest.raises(StoreUnavailable):
        OPERATIONS["list"](gcs_store(NOT_FOUND))
