"""Reads of encrypted objects through the XML API."""

from __future__ import annotations

import hashlib

import pytest

from bastion.net.http1 import Response
from tests.support.proxy_objects import INNER, SEGMENT, content, put_raw, stage, store
from tests.support.proxy_stage import Stage, body_of, crc32c_text

__all__ = ["stage"]

PLACES = pytest.mark.parametrize(
    ("target", "host"),
    [("/vault/a%2Fb", "storage.googleapis.com"), ("/a/b", "vault.storage.googleapis.com")],
    ids=["path", "host"],
)


@PLACES
def test_an_object_is_read_with_two_requests_and_then_with_one(stage: Stage, target: str, host: str) -> None:
    data = content(3 * INNER)
    raw = store(stage, "a/b", data)
    stage.forget_asked()
    for _ in range(2):
        assert body_of(stage.ask("GET", target, host=host)) == data
    assert stage.requests == [
        f"HEAD {target}",
        f"GET {target}?generation={raw['generation']}",
        f"GET {target}",
    ]
    (asked, _) = stage.upstream.asked[-1]
    assert asked.headers.get("x-goog-if-generation-match") == raw["generation"]
    assert asked.authority == host


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_headers_tell_of_the_plaintext(stage: Stage, method: str) -> None:
    raw = store(stage, "a", b"hello", encoding="br", metadata={"color": "red"}, cacheControl="no-store")
    response = stage.ask(method, "/vault/a", headers=[("Accept-Encoding", "br")])
    headers = response.headers
    assert (response.status, body_of(response)) == (200, b"hello" if method == "GET" else b"")
    assert headers.get_all("Content-Length") == ["5"]
    assert headers.get_all("x-goog-stored-content-length") == ["5"]
    assert headers.get_all("x-goog-hash") == [f"crc32c={crc32c_text(b'hello')}"]
    assert headers.get_all("Content-Encoding") == ["br"]
    assert headers.get_all("x-goog-stored-content-encoding") == ["br"]
    assert headers.get("x-goog-meta-color") == "red"
    assert headers.get("x-goog-generation") == raw["generation"]
    assert headers.get("Cache-Control") == "no-store"
    assert "gcsproxy" not in repr(headers)


def test_head_takes_one_request(stage: Stage) -> None:
    store(stage, "a", b"hello")
    for _ in range(2):
        stage.forget_asked()
        body_of(stage.ask("HEAD", "/vault/a"))
        assert stage.requests == ["HEAD /vault/a"]


def test_the_entity_tag_passes_for_no_md5_and_is_understood(stage: Stage) -> None:
    store(stage, "a", b"hello")
    tag = stage.ask("HEAD", "/vault/a").headers.get("ETag")
    stored = hashlib.md5(stage.stored("a")[1]).hexdigest()
    assert tag == f'"{stored}-1"'
    for _ in range(2):
        for header, status in (("If-Match", 200), ("If-None-Match", 304)):
            response = stage.ask("GET", "/vault/a", headers=[(header, tag)])
            assert response.status == status
            body_of(response)
        response = stage.ask("GET", "/vault/a", headers=[("If-Match", '"x"')])
        assert response.status == 412
        body_of(response)


def test_a_range_reads_one_segment(stage: Stage) -> None:
    data = content(5 * INNER)
    store(stage, "a", data)
    body_of(stage.ask("HEAD", "/vault/a"))
    for _ in range(2):
        response = stage.ask("GET", "/vault/a", headers=[("Range", "bytes=600000-600009")])
        assert (response.status, body_of(response)) == (206, data[600000:600010])
        assert response.headers.get("Content-Range") == f"bytes 600000-600009/{len(data)}"
        assert stage.upstream.asked[-1][0].headers.get("Range") == f"bytes={2 * SEGMENT}-{3 * SEGMENT - 1}"


def test_a_range_past_the_end_is_refused_in_xml(stage: Stage) -> None:
    store(stage, "a", b"hello")
    response = stage.ask("GET", "/vault/a", headers=[("Range", "bytes=5-")])
    assert (response.status, response.headers.get("Content-Range")) == (416, "bytes */5")
    assert b"<Code>InvalidRange</Code>" in body_of(response)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("x-goog-if-generation-match", "{}", 200),
        ("x-goog-if-generation-match", "1", 412),
        ("x-goog-if-generation-match", "0", 412),
        ("x-goog-if-generation-match", "x", 400),
        ("x-goog-if-metageneration-match", "1", 200),
        ("x-goog-if-metageneration-match", "2", 412),
    ],
)
def test_conditions_are_honoured_whether_or_not_the_object_is_known(
    stage: Stage, header: str, value: str, status: int, known: bool
) -> None:
    raw = store(stage, "a", b"hello")
    if known:
        stage.content("a")
    response = stage.ask("GET", "/vault/a", headers=[(header, value.format(raw["generation"]))])
    assert response.status == status
    assert (body_of(response) == b"hello") == (status == 200)


@pytest.mark.parametrize("known", [False, True])
def test_the_generation_that_is_asked_for_is_read(stage: Stage, known: bool) -> None:
    raw = store(stage, "a", b"hello")
    if known:
        stage.content("a")
    assert body_of(stage.ask("GET", f"/vault/a?generation={raw['generation']}")) == b"hello"
    response = stage.ask("GET", "/vault/a?generation=1")
    assert response.status == 404
    body_of(response)


def test_a_replaced_object_is_never_read_stale(stage: Stage) -> None:
    for text in (b"one", b"the second"):
        store(stage, "a", text)
        assert body_of(stage.ask("GET", "/vault/a")) == text
        assert body_of(stage.ask("GET", "/vault/a")) == text


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_is_not_there_is_not_found_in_xml(stage: Stage, method: str) -> None:
    response = stage.ask(method, "/vault/nothing")
    assert response.status == 404
    assert b"<Code>NoSuchKey</Code>" in body_of(response) or method == "HEAD"


@pytest.mark.parametrize(
    ("status", "code"),
    [(304, b""), (401, b"AccessDenied"), (403, b"AccessDenied"), (429, b"Invalid"), (503, b"ServiceUnavailable")],
)
def test_a_refusal_of_the_service_keeps_its_status(stage: Stage, status: int, code: bytes) -> None:
    refused = Response(status=status)
    refused.headers.add("Retry-After", "7")
    stage.upstream.before = lambda _: refused
    response = stage.ask("GET", "/vault/a")
    assert (response.status, response.headers.get("Retry-After")) == (status, "7")
    assert code in body_of(response)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_an_answer_that_sends_elsewhere_before_the_object_is_known_is_none(stage: Stage, status: int) -> None:
    stage.upstream.before = lambda _: Response(status=status)
    assert stage.ask("GET", "/vault/a").status == 502


def test_plaintext_in_a_mapped_bucket_is_refused_in_xml(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    response = stage.ask("GET", "/vault/a")
    assert response.status == 403
    assert b"<Code>AccessDenied</Code>" in body_of(response)
    stage.restart(allow_plaintext=True)
    assert body_of(stage.ask("GET", "/vault/a")) == b"plain"


def test_head_of_plaintext_is_as_it_is(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    response = stage.ask("HEAD", "/vault/a")
    assert response.headers.get("ETag") == f'"{hashlib.md5(b"plain").hexdigest()}"'
    assert response.headers.get("Content-Length") == "5"
    body_of(response)


@pytest.mark.parametrize("entry", ["object-key", "header", "session-key", "kek", "version"])
def test_a_garbled_envelope_is_refused_in_xml(stage: Stage, entry: str) -> None:
    store(stage, "a", b"hello")
    patched = stage.ask_endpoint("PATCH", "/storage/v1/b/vault/o/a", {"metadata": {f"gcsproxy-{entry}": "AAAA"}})
    assert patched.status == 200
    for method in ("GET", "HEAD"):
        response = stage.ask(method, "/vault/a")
        assert response.status in (400, 403)
        assert b"hello" not in body_of(response)


def test_an_object_at_anothers_place_is_refused_in_xml(stage: Stage) -> None:
    raw = store(stage, "b", b"another")
    put_raw(stage, {"name": "a", "metadata": raw["metadata"]}, stage.stored("b")[1])
    response = stage.ask("GET", "/vault/a")
    assert response.status == 400
    body_of(response)


def test_an_envelope_whose_headers_come_twice_is_refused(stage: Stage) -> None:
    store(stage, "a", b"hello")

    def twice(asked: object, answer: object) -> None:
        answer.headers.add("X-Goog-Meta-GCSProxy-Header", "AAAA")  # type: ignore[attr-defined]

    stage.upstream.after = twice
    response = stage.ask("GET", "/vault/a")
    assert response.status == 400
    body_of(response)
