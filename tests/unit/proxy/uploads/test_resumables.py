"""Resumable uploads of clients through the proxy: chunks that end anywhere, what is acknowledged, what was declared."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from bastion.proxy.sealed.segments import SEGMENT_BYTES, sealed_size
from bastion.proxy.service.upstream import Asked
from tests.support.proxy_stage import PieceBody, Stage, crc32c_text, document, reason
from tests.support.proxy_uploads import (
    FIRST,
    INSERT,
    KIB,
    MIB,
    WHOLE,
    Uploader,
    noise,
    notes,
    nothing_stored,
    stored,
)


@pytest.mark.parametrize("chunk", [256 * KIB, 512 * KIB, MIB, 5 * MIB])
@pytest.mark.parametrize(
    "size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + WHOLE, FIRST + WHOLE + 1, 4 * 256 * KIB, 3 * MIB + 17]
)
def test_an_upload_in_chunks_is_stored_sealed_whatever_its_size(stage: Stage, size: int, chunk: int) -> None:
    data = noise(size)
    shown = document(Uploader(stage, data).run(chunk))
    assert (shown["size"], shown["crc32c"]) == (str(size), crc32c_text(data))
    assert stored(stage) == data
    assert stage.content("thing") == data


@pytest.mark.parametrize("chunk", [256 * KIB, MIB])
def test_what_is_acknowledged_is_the_plaintext_that_was_received(stage: Stage, chunk: int) -> None:
    data = noise(3 * MIB)
    upload = Uploader(stage, data)
    for start in range(0, 2 * MIB, chunk):
        answer = upload.send(start, start + chunk)
        assert (answer.status, answer.reason) == (308, "Resume Incomplete")
        assert answer.headers.get("Range") == f"bytes=0-{start + chunk - 1}"
        assert upload.status().headers.get("Range") == f"bytes=0-{start + chunk - 1}"


def test_nothing_is_acknowledged_before_anything_came(stage: Stage) -> None:
    answer = Uploader(stage, b"data").status()
    assert answer.status == 308
    assert "Range" not in answer.headers


def test_a_chunk_without_a_whole_segment_asks_nothing_of_the_service(stage: Stage) -> None:
    upload = Uploader(stage, noise(MIB))
    stage.forget_asked()
    assert upload.send(0, FIRST).status == 308
    assert stage.requests == []
    assert upload.send(FIRST, FIRST + 1).status == 308
    assert len(stage.requests) == 1


def test_a_large_upload_in_one_chunk_is_three_requests_to_the_service(stage: Stage) -> None:
    document(Uploader(stage, noise(MIB)).run(MIB))
    assert [asked.method for asked, _ in stage.upstream.asked] == ["POST", "PUT", "PATCH"]


def test_a_chunk_goes_up_in_one_request_of_whole_segments(stage: Stage) -> None:
    upload = Uploader(stage, noise(3 * MIB))
    upload.send(0, 2 * MIB)
    asked, sent = stage.upstream.asked[-1]
    assert asked.headers.get("Content-Range") == f"bytes 0-{8 * SEGMENT_BYTES - 1}/{sealed_size(3 * MIB)}"
    assert len(sent) == asked.length == 8 * SEGMENT_BYTES


def test_the_services_address_is_the_clients(stage: Stage) -> None:
    answer = stage.ask("POST", f"{INSERT}?uploadType=resumable&name=thing", {})
    assert answer.headers.get("Location").startswith("https://storage.googleapis.com/upload/storage/v1/b/vault/o?")


def test_the_service_is_told_the_sealed_size(stage: Stage) -> None:
    Uploader(stage, noise(MIB))
    assert stage.upstream.asked[0][0].headers.get("X-Upload-Content-Length") == str(sealed_size(MIB))


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_chunks_may_come_by_put_or_post(stage: Stage, method: str) -> None:
    data = noise(MIB)
    document(Uploader(stage, data, method=method).run(300 * KIB))
    assert stored(stage) == data


def test_the_whole_object_may_come_without_a_content_range(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data, total=None)
    shown = document(stage.ask("PUT", upload.target, data))
    assert shown["size"] == str(MIB)
    assert stored(stage) == data


@pytest.mark.parametrize("size", [0, 1, FIRST, FIRST + WHOLE, 17 * MIB])
def test_the_whole_object_may_come_without_a_length(stage: Stage, size: int) -> None:
    data = noise(size)
    upload = Uploader(stage, data, total=None)
    shown = document(stage.ask("PUT", upload.target, PieceBody(iter([data] if data else []), None)))
    assert shown["size"] == str(size)
    assert stored(stage) == data


def test_an_upload_that_is_larger_than_any_object_does_not_begin(stage: Stage) -> None:
    headers = [("X-Upload-Content-Length", "9223372036854775807")]
    assert stage.ask("POST", f"{INSERT}?uploadType=resumable&name=thing", {}, headers=headers).status == 400
    assert stage.requests == []


@pytest.mark.parametrize("size", [MIB - 1, MIB + 1])
def test_an_upload_of_another_size_than_it_was_begun_for_is_refused(stage: Stage, size: int) -> None:
    upload = Uploader(stage, noise(MIB))
    for length in (size, None):
        answer = stage.ask("PUT", upload.target, PieceBody(iter([noise(size)]), length))
        assert reason(answer) == (400, "invalid")
    assert nothing_stored(stage)


def test_a_chunk_of_known_range_may_come_without_a_length(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    headers = [("Content-Range", f"bytes 0-{MIB - 1}/{MIB}"), ("Transfer-Encoding", "identity, chunked")]
    document(stage.ask("PUT", upload.target, PieceBody(iter([data]), None), headers=headers))
    assert stored(stage) == data


def test_chunks_of_no_known_end_are_taken_until_the_client_says_how_long_it_is(stage: Stage) -> None:
    data = noise(18 * MIB)
    upload = Uploader(stage, data, total=None)
    half = 17 * MIB + 5
    headers = [("Content-Range", "bytes 0-*/*")]
    answer = stage.ask("PUT", upload.target, PieceBody(iter([data[:half]]), None), headers=headers)
    assert (answer.status, answer.headers.get("Range")) == (308, f"bytes=0-{half - 1}")
    headers = [("Content-Range", f"bytes {half}-*/*")]
    stage.ask("PUT", upload.target, PieceBody(iter([data[half:]]), None), headers=headers)
    document(stage.ask("PUT", upload.target, headers=[("Content-Range", f"bytes */{len(data)}")]))
    assert stored(stage) == data


def test_an_upload_of_unknown_size_ends_when_the_client_says_so(stage: Stage) -> None:
    data = noise(2 * MIB)
    upload = Uploader(stage, data, total=None)
    for start in (0, MIB):
        assert upload.send(start, start + MIB).status == 308
    shown = document(stage.ask("PUT", upload.target, headers=[("Content-Range", f"bytes */{len(data)}")]))
    assert shown["size"] == str(2 * MIB)
    assert stored(stage) == data


def test_bytes_that_were_received_already_are_skipped(stage: Stage) -> None:
    data = noise(2 * MIB)
    upload = Uploader(stage, data)
    upload.send(0, MIB)
    assert upload.send(0, 300_000).headers.get("Range") == f"bytes=0-{MIB - 1}"
    assert upload.send(500_000, MIB + 500_000).headers.get("Range") == f"bytes=0-{MIB + 499_999}"
    document(upload.send(MIB, 2 * MIB))
    assert stored(stage) == data


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("bytes 500000-600000/1048576", 100_001),
        ("bytes 0-99/1048576", 50),
        ("bytes 0-99/1048577", 100),
        ("bytes 0-1048576/*", 1_048_577),
        ("bytes 0-99/9223372036854775807", 100),
        ("bytes 9-3/*", 3),
        ("lines 1-2/3", 2),
    ],
    ids=["a gap", "another length", "another total", "beyond the total", "beyond all objects", "backwards", "no range"],
)
def test_a_chunk_that_contradicts_itself_or_the_upload_is_refused(stage: Stage, header: str, size: int) -> None:
    upload = Uploader(stage, noise(MIB))
    stage.forget_asked()
    answer = stage.ask("PUT", upload.target, noise(size), headers=[("Content-Range", header)])
    assert reason(answer) == (400, "invalid")
    assert stage.requests == []
    assert upload.status().status == 308


def test_a_finished_upload_says_the_same_again(stage: Stage) -> None:
    data = noise(600_000)
    upload = Uploader(stage, data)
    shown = document(upload.run(256 * KIB))
    stage.forget_asked()
    assert document(upload.status()) == shown
    assert document(upload.send(512 * KIB, 600_000)) == shown
    assert stage.requests == []


def test_a_finished_upload_says_so_after_a_restart(stage: Stage) -> None:
    data = noise(600_000)
    upload = Uploader(stage, data)
    shown = document(upload.run(256 * KIB))
    stage.restart()
    again = document(upload.status())
    assert (again["size"], again["generation"]) == (shown["size"], shown["generation"])
    assert not any(name.startswith("gcsproxy") for name in again.get("metadata", {}))


def test_the_fields_of_the_beginning_count_at_the_end(stage: Stage) -> None:
    upload = Uploader(stage, noise(100), query="&fields=size,name")
    for answer in (upload.run(100), upload.status()):
        assert document(answer) == {"size": "100", "name": "thing"}
    assert not any("fields" in target for target in stage.requests)


def test_attributes_of_the_beginning_are_the_objects(stage: Stage) -> None:
    body = {"name": "thing", "metadata": {"colour": "blue"}, "contentEncoding": "gzip"}
    headers = [("X-Upload-Content-Type", "application/x-test")]
    answer = stage.ask("POST", f"{INSERT}?uploadType=resumable", body, headers=headers)
    target = answer.headers.get("Location").removeprefix("https://storage.googleapis.com")
    shown = document(stage.ask("PUT", target, b"data"))
    assert (shown["contentType"], shown["contentEncoding"]) == ("application/x-test", "gzip")
    assert shown["metadata"] == {"colour": "blue"}
    assert "contentEncoding" not in stage.stored("thing")[0]


def test_a_cancelled_upload_is_forgotten(stage: Stage, tmp_path: Path) -> None:
    upload = Uploader(stage, noise(MIB))
    upload.send(0, 512 * KIB)
    assert stage.ask("DELETE", upload.target).status == 499
    assert notes(tmp_path) == []
    assert reason(upload.status())[0] == 410


# What was declared.

WRONG_CRC32C = ("x-goog-hash", f"crc32c={crc32c_text(b'other')}")
WRONG_MD5 = ("x-goog-hash", f"md5={base64.b64encode(hashlib.md5(b'other').digest()).decode()}")


@pytest.mark.parametrize("wrong", [WRONG_CRC32C, WRONG_MD5], ids=["crc32c", "md5"])
@pytest.mark.parametrize("when", ["at the beginning", "with the last chunk"])
def test_bytes_that_are_not_the_declared_ones_end_the_upload(
    stage: Stage, tmp_path: Path, when: str, wrong: tuple[str, str]
) -> None:
    first = [wrong] if when == "at the beginning" else []
    upload = Uploader(stage, noise(MIB), headers=first)
    if wrong is WRONG_CRC32C:
        upload.send(0, 512 * KIB)
    start = upload.received
    answer = upload.send(start, MIB, headers=[] if first else [wrong])
    assert reason(answer) == (400, "invalid")
    assert nothing_stored(stage)
    assert stage.requests[-1].startswith("DELETE")
    assert notes(tmp_path) == []
    assert reason(upload.status())[0] == 410


def test_an_md5_that_is_declared_too_late_is_refused_and_the_upload_can_go_on(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 512 * KIB)
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    assert upload.send(512 * KIB, MIB, headers=[("x-goog-hash", f"md5={md5}")]).status == 400
    document(upload.send(512 * KIB, MIB))
    assert stored(stage) == data


def test_a_declared_md5_is_followed_through_all_chunks(stage: Stage) -> None:
    data = noise(MIB)
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    shown = document(Uploader(stage, data, headers=[("Content-MD5", md5)]).run(256 * KIB))
    assert shown["md5Hash"] == md5


def test_a_declared_md5_cannot_be_followed_over_a_restart(stage: Stage) -> None:
    data = noise(MIB)
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    upload = Uploader(stage, data, headers=[("Content-MD5", md5)])
    upload.send(0, 512 * KIB)
    stage.restart()
    assert reason(upload.status())[0] == 410
    assert stage.requests[-1].startswith("DELETE")


def test_what_the_service_stored_is_compared_and_deleted_if_it_differs(stage: Stage, tmp_path: Path) -> None:
    def after(asked: Asked, answer: Any) -> None:
        if asked.method == "PUT" and answer.status == 200:
            answer.replace(answer.content.replace(b'"size":"', b'"size":"9'))

    upload = Uploader(stage, noise(MIB))
    stage.upstream.after = after
    assert reason(upload.run(MIB)) == (502, "backendError")
    assert nothing_stored(stage)
    assert notes(tmp_path) == []
