"""Batches through the proxy: untouched where no mapped bucket is named, else call by call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.net.http1 import Headers, Response
from bastion.proxy.service.upstream import UpstreamUnavailable
from tests.support.proxy_objects import put_raw, stage, store
from tests.support.proxy_stage import Stage, body_of, crc32c_text, reason

__all__ = ["stage"]

BATCH = "/batch/storage/v1"
TYPE = ("Content-Type", "multipart/mixed; boundary=edge")


def batch_of(*calls: str) -> bytes:
    """Calls as `METHOD TARGET[ BODY]`."""
    parts = []
    for number, call in enumerate(calls):
        method, target, body = [*call.split(" ", 2), ""][:3]
        inner = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        parts.append(
            f"--edge\r\nContent-Type: application/http\r\nContent-ID: <id+{number}>\r\n\r\n"
            f"{method} {target} HTTP/1.1\r\n{inner}\r\n{body}\r\n"
        )
    return "".join([*parts, "--edge--\r\n"]).encode()


def answers(response: Response) -> list[tuple[int, Any]]:
    """Status and body of each call; the body as JSON if it is."""
    assert response.status == 200
    body = body_of(response).decode()
    marker = response.headers.get("Content-Type").partition("boundary=")[2]
    found = []
    for number, part in enumerate(body.split(f"--{marker}")[1:-1]):
        outer, inner, content = part.split("\r\n\r\n", 2)
        assert f"<response-id+{number}>" in outer
        content = content.strip()
        found.append((int(inner.split()[1]), json.loads(content) if content.startswith("{") else content))
    return found


def test_a_batch_that_names_no_mapped_bucket_passes_untouched(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain", bucket="lake")
    stage.forget_asked()
    body = batch_of("GET /storage/v1/b/lake/o/a", "DELETE /storage/v1/b/lake/o/a")
    found = answers(stage.ask("POST", BATCH, body, headers=[TYPE]))
    assert [status for status, _ in found] == [200, 204]
    assert [sent for _, sent in stage.upstream.asked] == [body]
    assert stage.requests == [f"POST {BATCH}"]


def test_the_calls_of_a_batch_are_answered_one_by_one(stage: Stage) -> None:
    store(stage, "a", b"hello", metadata={"color": "red"})
    store(stage, "b", b"other")
    put_raw(stage, {"name": "p"}, b"plain", bucket="lake")
    calls = (
        "GET /storage/v1/b/vault/o/a",
        'PATCH /storage/v1/b/vault/o/a {"metadata": null}',
        'PATCH /storage/v1/b/vault/o/a {"metadata": {"gcsproxy-header": "x"}}',
        "DELETE /storage/v1/b/vault/o/b",
        "GET /storage/v1/b/vault/o/b",
        "GET https://storage.googleapis.com/storage/v1/b/lake/o/p",
        "GET /storage/v1/b/vault/o?fields=items(name,size)",
    )
    first, patched, refused, deleted, gone, plain, listed = answers(
        stage.ask("POST", BATCH, batch_of(*calls), headers=[TYPE])
    )
    assert (first[0], first[1]["size"], first[1]["crc32c"]) == (200, "5", crc32c_text(b"hello"))
    assert (patched[0], "metadata" in patched[1]) == (200, False)
    assert (refused[0], deleted[0], gone[0], plain[0]) == (400, 204, 404, 200)
    assert plain[1]["size"] == "5"
    assert listed == (200, {"items": [{"name": "a", "size": "5"}]})
    assert stage.content("a") == b"hello"


def test_the_token_of_a_batch_goes_with_each_of_its_calls(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    headers = [TYPE, ("Authorization", "Bearer t"), ("X-Goog-User-Project", "p")]
    answers(stage.ask("POST", BATCH, batch_of("GET /storage/v1/b/vault/o/a"), headers=headers))
    [(asked, _)] = stage.upstream.asked
    assert (asked.headers.get("Authorization"), asked.headers.get("X-Goog-User-Project")) == ("Bearer t", "p")
    assert "multipart" not in asked.headers.get("Content-Type")


def test_a_calls_own_headers_come_before_those_of_the_batch(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    body = batch_of("GET /storage/v1/b/vault/o/a").replace(
        b"HTTP/1.1\r\n", b"HTTP/1.1\r\nauthorization: Bearer own\r\n"
    )
    answers(stage.ask("POST", BATCH, body, headers=[TYPE, ("Authorization", "Bearer t")]))
    assert stage.upstream.asked[0][0].headers.get_all("Authorization") == ["Bearer own"]


@pytest.mark.parametrize(
    "call",
    [
        "GET /storage/v1/b/vault/o/a?alt=media",
        "GET /download/storage/v1/b/vault/o/a?alt=media",
        "GET /vault/a",
        "PUT /vault/a",
        "POST /upload/storage/v1/b/vault/o?uploadType=media&name=a x",
        "POST /batch/storage/v1",
        "POST /storage/v1/b/vault/o/a/compose {}",
        "GET /storage/v1/b/vault/o/%FF",
        "GET /storage/v1/b/vault/o/a?x=%FF",
    ],
)
def test_what_has_no_place_in_a_batch_is_refused_beside_the_others(stage: Stage, call: str) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    first, second = answers(stage.ask("POST", BATCH, batch_of(call, "GET /storage/v1/b/vault/o/a"), headers=[TYPE]))
    assert first[0] in (400, 501)
    assert second[0] == 200
    assert len(stage.requests) == 1


def test_a_call_that_breaks_off_is_unavailable_beside_the_others(stage: Stage) -> None:
    store(stage, "a", b"hello")
    put_raw(stage, {"name": "p"}, b"plain", bucket="lake")

    class Broken:
        length = None
        status, reason, headers = 200, "", Headers()

        def read(self, size: int = -1) -> bytes:
            raise UpstreamUnavailable("the connection broke off")

        def close(self) -> None:
            pass

    inside = stage.upstream.ask
    stage.upstream.ask = lambda asked: Broken() if "lake" in asked.target else inside(asked)  # type: ignore
    calls = ("GET /storage/v1/b/lake/o/p", "GET /storage/v1/b/vault/o/a")
    first, second = answers(stage.ask("POST", BATCH, batch_of(*calls), headers=[TYPE]))
    assert (first[0], second[0]) == (503, 200)


@pytest.mark.parametrize("body", [b"", b"--edge\r\n", b"--edge\r\n\r\nx\r\n--edge--"], ids=["empty", "open", "no call"])
def test_a_batch_that_cannot_be_read_is_refused_as_a_whole(stage: Stage, body: bytes) -> None:
    assert reason(stage.ask("POST", BATCH, body, headers=[TYPE]))[0] == 400
    assert stage.requests == []
