"""Reads of encrypted objects through the JSON API: how many requests, which bytes, which headers."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.core.errors import KmsUnavailable
from bastion.net.http1 import Disconnect, Headers, Response
from bastion.proxy.service.upstream import Asked
from tests.support.proxy_objects import FIRST, INNER, SEGMENT, content, put_raw, stage, store
from tests.support.proxy_stage import InProcessAnswer, Stage, body_of, crc32c_text, document

__all__ = ["stage"]

OBJECT = "/storage/v1/b/vault/o/a"
MEDIA = f"{OBJECT}?alt=media"


def ranged(stage: Stage, text: str, name: str = "a") -> Response:
    return stage.get(name, headers=[("Range", text)])


def kms_is_down(stage: Stage) -> None:
    def unavailable(*_: object, **__: object) -> bytes:
        raise KmsUnavailable("the key service does not answer")

    stage.kms.wrap = stage.kms.unwrap = unavailable  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + INNER, 6 * INNER + 5])
def test_an_object_is_read_as_it_was_stored(stage: Stage, size: int) -> None:
    data = content(size)
    store(stage, "a", data)
    assert stage.content("a") == data
    assert stage.content("a") == data


def test_an_unknown_small_object_takes_two_requests_and_a_known_one_takes_one(stage: Stage) -> None:
    resource = store(stage, "a", b"hello")
    stage.restart()
    stage.forget_asked()
    assert stage.content("a") == b"hello"
    assert stage.requests == [
        f"GET {OBJECT}?alt=json",
        f"GET {OBJECT}?alt=media&generation={resource['generation']}",
    ]
    stage.forget_asked()
    assert stage.content("a") == b"hello"
    assert stage.requests == [f"GET {OBJECT}?alt=media&ifGenerationMatch={resource['generation']}"]


def test_an_object_that_was_described_or_listed_takes_one_request(stage: Stage) -> None:
    store(stage, "a", b"hello")
    for target in (OBJECT, "/storage/v1/b/vault/o"):
        stage.restart()
        document(stage.ask("GET", target))
        stage.forget_asked()
        assert stage.content("a") == b"hello"
        assert len(stage.requests) == 1


def test_a_small_range_of_a_known_object_is_one_request_of_one_segment_and_no_call_to_the_key_service(
    stage: Stage,
) -> None:
    data = content(6 * INNER)
    store(stage, "a", data)
    stage.content("a")
    kms_is_down(stage)
    stage.clock.advance(3600)
    stage.forget_asked()
    start = FIRST + 2 * INNER + 100
    response = ranged(stage, f"bytes={start}-{start + 4095}")
    assert body_of(response) == data[start : start + 4096]
    [(asked, _)] = stage.upstream.asked
    assert asked.headers.get("Range") == f"bytes={3 * SEGMENT}-{4 * SEGMENT - 1}"


@pytest.mark.parametrize(
    ("text", "start", "length"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-", 0, 600000),
        ("bytes=5-9", 5, 5),
        (f"bytes={FIRST - 1}-{FIRST}", FIRST - 1, 2),
        (f"bytes={FIRST}-{FIRST}", FIRST, 1),
        (f"bytes={FIRST}-{FIRST + INNER - 1}", FIRST, INNER),
        ("bytes=599999-599999", 599999, 1),
        ("bytes=599990-999999999", 599990, 10),
        ("bytes=-1", 599999, 1),
        ("bytes=-300000", 300000, 300000),
        ("bytes=-999999999", 0, 600000),
    ],
)
def test_a_range_is_answered_in_terms_of_the_plaintext(stage: Stage, text: str, start: int, length: int) -> None:
    data = content(600000)
    store(stage, "a", data)
    for _ in range(2):
        response = ranged(stage, text)
        assert response.status == 206
        assert response.headers.get("Content-Range") == f"bytes {start}-{start + length - 1}/600000"
        assert response.headers.get("Content-Length") == str(length)
        assert body_of(response) == data[start : start + length]


def test_ranges_read_only_the_segments_they_need(stage: Stage) -> None:
    data = content(5 * INNER)
    store(stage, "a", data)
    stage.content("a")
    for text, segments in (("bytes=0-0", (0, 0)), (f"bytes={FIRST - 1}-{FIRST}", (0, 1)), ("bytes=-1", (5, 5))):
        stage.forget_asked()
        body_of(ranged(stage, text))
        [(asked, _)] = stage.upstream.asked
        first, _, last = asked.headers.get("Range").removeprefix("bytes=").partition("-")
        assert (int(first) // SEGMENT, int(last) // SEGMENT) == segments
        assert int(first) % SEGMENT == 0


@pytest.mark.parametrize("size", [0, 10])
def test_a_range_past_the_end_is_refused_with_the_plaintext_size(stage: Stage, size: int) -> None:
    store(stage, "a", content(size))
    for _ in range(2):
        response = ranged(stage, "bytes=10-")
        assert response.status == 416
        assert response.headers.get("Content-Range") == f"bytes */{size}"
        body_of(response)


def test_a_range_past_the_end_of_what_is_remembered_is_looked_up_again(stage: Stage) -> None:
    store(stage, "a", b"short")
    stage.content("a")
    store(stage, "a", content(100))
    assert body_of(ranged(stage, "bytes=90-")) == content(100)[90:]


@pytest.mark.parametrize("text", ["bytes=5-2", "lines=1-2", "bytes=0-1,4-5", "bytes=-"])
def test_what_is_no_single_range_is_answered_with_the_whole_object(stage: Stage, text: str) -> None:
    store(stage, "a", b"0123456789")
    response = ranged(stage, text)
    assert response.status == 200
    assert body_of(response) == b"0123456789"


def test_a_range_under_a_condition_is_answered_with_the_whole_object(stage: Stage) -> None:
    store(stage, "a", b"0123456789")
    response = stage.get("a", headers=[("Range", "bytes=2-3"), ("If-Range", '"x"')])
    assert (response.status, body_of(response)) == (200, b"0123456789")


def test_headers_tell_of_the_plaintext(stage: Stage) -> None:
    resource = store(stage, "a", b"hello", cacheControl="no-store", contentDisposition="inline")
    for _ in range(2):
        response = stage.get("a")
        headers = response.headers
        assert body_of(response) == b"hello"
        assert headers.get_all("x-goog-hash") == [f"crc32c={crc32c_text(b'hello')}"]
        assert headers.get_all("x-goog-stored-content-length") == ["5"]
        assert headers.get_all("Content-Length") == ["5"]
        assert headers.get_all("x-goog-stored-content-encoding") == ["identity"]
        assert headers.get("x-goog-generation") == resource["generation"]
        assert headers.get("x-goog-metageneration") == "1"
        assert headers.get("x-goog-storage-class") == "STANDARD"
        assert headers.get("ETag") == resource["etag"]
        assert headers.get("Content-Type") == "application/x-test"
        assert headers.get("Cache-Control") == "no-store"
        assert headers.get("Content-Disposition") == "inline"
        assert headers.get("Last-Modified")
        assert "Content-Encoding" not in headers
        assert resource["md5Hash"] not in repr(headers)
        assert "gcsproxy" not in repr(headers)


def test_an_object_without_a_checksum_has_none_in_its_headers(stage: Stage) -> None:
    store(stage, "a", b"hello", sums=False)
    response = stage.get("a")
    assert body_of(response) == b"hello"
    assert "x-goog-hash" not in response.headers


def test_the_content_encoding_is_the_owners_and_nothing_is_transcoded(stage: Stage) -> None:
    store(stage, "a", b"\x1f\x8bnot really", encoding="gzip")
    response = stage.get("a", headers=[("Accept-Encoding", "gzip")])
    assert response.headers.get("Content-Encoding") == "gzip"
    assert response.headers.get("x-goog-stored-content-encoding") == "gzip"
    assert body_of(response) == b"\x1f\x8bnot really"
    assert [asked.headers.get_all("Accept-Encoding") for asked, _ in stage.upstream.asked] == [["identity"], ["gzip"]]


@pytest.mark.parametrize("known", [False, True])
def test_a_gzipped_object_is_unpacked_for_who_does_not_accept_gzip(stage: Stage, known: bool) -> None:
    data = content(3 * INNER)
    packed = gzip.compress(data[: 2 * INNER], 0) + gzip.compress(data[2 * INNER :], 0)
    assert len(packed) > 3 * INNER
    store(stage, "a", packed, encoding="gzip")
    if known:
        stage.get("a", headers=[("Accept-Encoding", "gzip")]).close()
    for headers in ([], [("Range", "bytes=5-9")]):
        response = stage.get("a", headers=headers)
        assert (response.status, body_of(response)) == (200, data)
        assert response.headers.get("Warning") == "214 UploadServer gunzipped"
        assert response.headers.get("x-goog-stored-content-encoding") == "gzip"
        assert response.headers.get("x-goog-hash") == f"crc32c={crc32c_text(packed)}"
        assert {"Content-Encoding", "Content-Length"}.isdisjoint(dict(response.headers.items()))
    head = stage.ask("HEAD", MEDIA)
    assert (head.status, head.length) == (200, None)
    head.close()


def test_a_gzipped_object_that_must_not_be_transformed_is_not(stage: Stage) -> None:
    packed = gzip.compress(b"hello")
    store(stage, "a", packed, encoding="gzip", cacheControl="public, no-transform")
    response = stage.get("a")
    assert (response.headers.get("Content-Encoding"), body_of(response)) == ("gzip", packed)


def test_what_is_called_gzip_and_is_none_is_served_as_it_is(stage: Stage) -> None:
    store(stage, "a", b"hello", encoding="gzip")
    response = stage.get("a")
    assert (response.headers.get("Content-Length"), body_of(response)) == ("5", b"hello")
    assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize(
    "change", [lambda data: data[:-9], lambda data: data[:40] + b"\xff" * 9 + data[49:]], ids=["short", "garbled"]
)
def test_a_gzipped_object_that_is_broken_never_ends_cleanly(stage: Stage, change: Callable[[bytes], bytes]) -> None:
    store(stage, "a", change(gzip.compress(content(3 * INNER))), encoding="gzip")
    with pytest.raises(Disconnect):
        body_of(stage.get("a"))


def test_head_tells_the_same_without_a_body(stage: Stage) -> None:
    store(stage, "a", b"hello")
    for _ in range(2):
        response = stage.ask("HEAD", MEDIA)
        assert (response.status, response.headers.get("Content-Length"), body_of(response)) == (200, "5", b"")


def test_the_download_address_reads_too(stage: Stage) -> None:
    resource = store(stage, "a/b c", b"hello")
    stage.forget_asked()
    target = f"/download/storage/v1/b/vault/o/a%2Fb%20c?generation={resource['generation']}&alt=media"
    for _ in range(2):
        assert body_of(stage.ask("GET", target)) == b"hello"
    assert stage.requests == [
        f"GET /storage/v1/b/vault/o/a%2Fb%20c?generation={resource['generation']}&alt=json",
        f"GET /download/storage/v1/b/vault/o/a%2Fb%20c?alt=media&generation={resource['generation']}",
        f"GET /download/storage/v1/b/vault/o/a%2Fb%20c?generation={resource['generation']}&alt=media",
    ]


def test_every_other_parameter_and_header_goes_along(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.forget_asked()
    target = f"{MEDIA}&userProject=who%20pays&fields=size"
    for _ in range(2):
        assert body_of(stage.ask("GET", target, headers=[("Authorization", "Bearer t")])) == b"hello"
    assert len(stage.requests) == 3
    for asked, _ in stage.upstream.asked:
        assert "userProject=who%20pays" in asked.target
        assert "fields" not in asked.target
        assert asked.headers.get("Authorization") == "Bearer t"


def test_an_object_that_is_not_there_is_not_found(stage: Stage) -> None:
    response = stage.get("nothing")
    assert response.status == 404
    body_of(response)


@pytest.mark.parametrize("known", [False, True])
def test_plaintext_in_a_mapped_bucket_is_refused_with_the_option_that_allows_it(stage: Stage, known: bool) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    if known:
        document(stage.ask("GET", OBJECT))
    response = stage.get("a")
    assert response.status == 403
    assert b"GCS_PROXY_ALLOW_PLAINTEXT" in body_of(response)


def test_plaintext_that_was_refused_can_be_read_once_it_is_encrypted(stage: Stage) -> None:
    put_raw(stage, {"name": "a"}, b"plain")
    body_of(stage.get("a"))
    store(stage, "a", b"sealed")
    assert stage.content("a") == b"sealed"


@pytest.mark.parametrize("flags", [{"allow_plaintext": True}, {"encrypt": False}], ids=["allowed", "disabled"])
def test_plaintext_passes_where_it_is_allowed_or_encryption_is_disabled(stage: Stage, flags: dict[str, bool]) -> None:
    stage.restart(**flags)
    resource = put_raw(stage, {"name": "a"}, b"0123456789")
    stage.forget_asked()
    assert stage.content("a") == b"0123456789"
    assert len(stage.requests) == 2
    response = ranged(stage, "bytes=2-3")
    assert (response.status, body_of(response)) == (206, b"23")
    assert response.headers.get("Content-Range") == "bytes 2-3/10"
    assert resource["md5Hash"] in response.headers.get("x-goog-hash")
    assert len(stage.requests) == 3


def test_ciphertext_is_decrypted_although_encryption_is_disabled(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.restart(encrypt=False)
    assert stage.content("a") == b"hello"


def test_what_lies_beside_a_mapped_prefix_passes_untouched(stage: Stage) -> None:
    put_raw(stage, {"name": "shallow"}, b"plain", bucket="attic")
    store(stage, "deep/a", b"sealed", bucket="attic")
    stage.forget_asked()
    assert stage.content("shallow", bucket="attic") == b"plain"
    assert stage.requests == ["GET /storage/v1/b/attic/o/shallow?alt=media"]
    assert stage.content("deep/a", bucket="attic") == b"sealed"


def test_a_refusal_of_the_service_comes_as_it_is(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.content("a")
    stage.upstream.before = lambda _: Response(status=403, headers=Headers([("X-Why", "token")]), body=b"no")
    response = stage.get("a")
    assert (response.status, response.headers.get("X-Why"), body_of(response)) == (403, "token", b"no")


def test_no_key_service_is_unavailability_and_no_request_for_bytes(stage: Stage) -> None:
    store(stage, "a", b"hello")
    stage.restart()
    kms_is_down(stage)
    response = stage.get("a")
    assert response.status == 503
    body_of(response)
    assert stage.requests[-1] == f"GET {OBJECT}?alt=json"


@pytest.mark.parametrize("change", ["length", "status", "range", "total"])
def test_an_answer_that_brings_other_bytes_than_were_asked_for_is_an_error(stage: Stage, change: str) -> None:
    store(stage, "a", content(600000))
    stage.content("a")

    def changed(asked: Asked, answer: InProcessAnswer) -> None:
        if "Range" in asked.headers:
            if change == "length":
                answer.length = 7
            elif change == "status":
                answer.status = 200
            else:
                answer.headers.set("Content-Range", f"bytes 0-{SEGMENT - 1}/{'7' if change == 'total' else '600136'}")

    stage.upstream.after = changed
    response = ranged(stage, "bytes=300000-300001")
    assert response.status == 503
    body_of(response)


def test_the_first_bytes_come_before_the_whole_object_was_read(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    store(stage, "a", content(40 * INNER))
    response = stage.get("a")
    answer = stage.upstream.answers[-1]
    assert answer.position == SEGMENT
    pieces = iter(response.body)  # type: ignore[arg-type]
    next(pieces)
    assert max(len(next(pieces)) for _ in range(5)) >= SEGMENT
    assert answer.position <= 22 * SEGMENT
    response.close()
    assert answer.closed


@pytest.mark.parametrize("known", [False, True])
def test_content_range_of_an_answer_with_200_is_ignored_and_its_length_is_not(stage: Stage, known: bool) -> None:
    data = content(FIRST + 100)
    store(stage, "a", data)
    if known:
        stage.content("a")
    sent = "bytes 0-99/100"

    def answered(asked: Asked, answer: InProcessAnswer) -> None:
        if "alt=media" in asked.target:
            answer.headers.set("Content-Range", sent)

    stage.upstream.after = answered
    response = stage.get("a")
    assert response.status == 200
    assert "Content-Range" not in response.headers
    assert body_of(response) == data

    def shortened(asked: Asked, answer: InProcessAnswer) -> None:
        answered(asked, answer)
        if "alt=media" in asked.target:
            answer.replace(answer.content[:-1])

    stage.upstream.after = shortened
    assert stage.get("a").status == 503
