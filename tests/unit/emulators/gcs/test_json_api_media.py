"""Downloads through the JSON API of the storage endpoint: ranges, conditions, headers, gzip."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bastion.net.http1 import FileSlice
from tests.support.gcs_endpoint import Endpoint, body_of


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


@pytest.mark.parametrize(
    ("header", "status", "expected", "content_range"),
    [
        ("", 200, b"0123456789", ""),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=7-99", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=4-2", 200, b"0123456789", ""),
        ("bytes=1-2,4-5", 200, b"0123456789", ""),
        ("lines=1-2", 200, b"0123456789", ""),
        ("bytes=-", 200, b"0123456789", ""),
        # Numbers that no 64 bits hold.
        (f"bytes=7-{2**64}", 206, b"789", "bytes 7-9/10"),
        (f"bytes=-{'9' * 5000}", 206, b"0123456789", "bytes 0-9/10"),
        (f"bytes={2**64}-3", 200, b"0123456789", ""),
        (f"bytes={'0' * 30}7-", 206, b"789", "bytes 7-9/10"),
    ],
)
def test_a_range_is_read_and_an_odd_one_is_no_range(
    endpoint: Endpoint, header: str, status: int, expected: bytes, content_range: str
) -> None:
    endpoint.put("a", b"0123456789")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media", Range=header)

    assert (response.status, response.headers.get("Content-Range")) == (status, content_range)
    assert body_of(response) == expected


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (b"0123456789", "bytes=10-"),
        (b"0123456789", "bytes=-0"),
        (b"", "bytes=0-"),
        (b"0123456789", f"bytes={2**63}-"),
        (b"0123456789", f"bytes={2**64}-{2**64 + 9}"),
        (b"0123456789", f"bytes={'9' * 5000}-"),
        (b"", f"bytes=-{2**64}"),
    ],
)
def test_a_range_past_the_end_is_416_and_says_how_large_the_object_is(
    endpoint: Endpoint, data: bytes, header: str
) -> None:
    endpoint.put("a", data)

    response = endpoint.ask("GET", "/download/storage/v1/b/lake/o/a?alt=media", Range=header)

    assert (response.status, response.headers.get("Content-Range")) == (416, f"bytes */{len(data)}")


def test_the_headers_of_a_download_say_what_the_resource_says(endpoint: Endpoint) -> None:
    shown = endpoint.put("a", b"0123456789", Content_Type="text/x")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media", Range="bytes=0-0")

    headers = response.headers
    assert headers.get("x-goog-generation") == shown["generation"]
    assert headers.get("x-goog-metageneration") == "1"
    assert headers.get("x-goog-stored-content-length") == "10"
    assert headers.get("x-goog-stored-content-encoding") == "identity"
    assert headers.get("x-goog-hash") == f"crc32c={shown['crc32c']},md5={shown['md5Hash']}"
    assert headers.get("x-goog-storage-class") == "STANDARD"
    assert (headers.get("ETag"), headers.get("Content-Type")) == (shown["etag"], "text/x")
    assert headers.get("Last-Modified").endswith("GMT")
    body_of(response)


def test_a_hostile_attribute_cannot_end_a_header(endpoint: Endpoint) -> None:
    endpoint.put("a", b"x")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"contentType": "a\r\nSet-Cookie: b", "contentLanguage": "ü"})

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")
    body_of(response)

    assert response.headers.get("Content-Type") == "a  Set-Cookie: b"
    assert response.headers.get("Content-Language").encode("latin-1").decode() == "ü"


def test_errors_of_a_download_are_words_without_json(endpoint: Endpoint) -> None:
    response = endpoint.ask("GET", "/storage/v1/b/lake/o/none?alt=media")

    assert response.status == 404
    assert b"none" in body_of(response)
    assert response.headers.get("Content-Type").startswith("text/html")


@pytest.mark.parametrize("alt", ["media", "json"])
def test_an_unchanged_object_is_304_without_a_body(endpoint: Endpoint, alt: str) -> None:
    shown = endpoint.put("a", b"x")
    target = f"/storage/v1/b/lake/o/a?alt={alt}"

    by_generation = endpoint.ask("GET", f"{target}&ifGenerationNotMatch={shown['generation']}")
    by_tag = endpoint.ask("GET", target, If_None_Match=f'"{shown["etag"]}"')

    assert [(response.status, response.body) for response in (by_generation, by_tag)] == [(304, b"")] * 2
    assert endpoint.ask("GET", target, If_Match="other").status == 412


def test_a_gzipped_object_is_served_as_its_content_to_who_does_not_take_gzip(endpoint: Endpoint) -> None:
    stored = gzip.compress(b"what it is") + gzip.compress(b" and more")
    endpoint.put("a", stored, "&contentEncoding=gzip")
    target = "/storage/v1/b/lake/o/a?alt=media"

    plain = endpoint.ask("GET", target, Range="bytes=0-3")
    raw = endpoint.ask("GET", target, Accept_Encoding="gzip, deflate")
    part = endpoint.ask("GET", target, Accept_Encoding="gzip", Range="bytes=0-3")

    assert (plain.status, body_of(plain)) == (200, b"what it is and more")
    assert "Content-Encoding" not in plain.headers
    assert "Content-Length" not in plain.headers
    assert plain.headers.get("x-goog-stored-content-length") == str(len(stored))
    assert (raw.status, body_of(raw), raw.headers.get("Content-Encoding")) == (200, stored, "gzip")
    assert (part.status, body_of(part)) == (206, stored[:4])


def test_a_little_gzip_that_becomes_much_comes_in_small_pieces(endpoint: Endpoint) -> None:
    content = b"a" * 20_000_001
    endpoint.put("a", gzip.compress(content), "&contentEncoding=gzip")

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")
    assert not isinstance(response.body, bytes | FileSlice)
    pieces = list(response.body)
    response.close()

    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= 256 * 1024


def test_no_transform_keeps_a_gzipped_object_as_it_is(endpoint: Endpoint) -> None:
    stored = gzip.compress(b"what it is")
    endpoint.put("a", stored, "&contentEncoding=gzip")
    endpoint.ask("PATCH", "/storage/v1/b/lake/o/a", {"cacheControl": "no-transform"})

    response = endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")

    assert (body_of(response), response.headers.get("Content-Encoding")) == (stored, "gzip")


def test_bytes_that_only_claim_to_be_gzip_are_served_as_they_are(endpoint: Endpoint) -> None:
    endpoint.put("a", b"not gzip", "&contentEncoding=gzip")

    assert body_of(endpoint.ask("GET", "/storage/v1/b/lake/o/a?alt=media")) == b"not gzip"
