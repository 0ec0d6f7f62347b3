"""Resumable uploads of clients through the proxy: chunks that end anywhere, restarts, breaks, what is never sent."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bastion.core.errors import KmsUnavailable
from bastion.http1 import BodyTruncated, Headers, Response
from bastion.proxy.resumables import Resumables
from bastion.proxy.segments import SEGMENT_BYTES, plain_capacity, plain_offset, sealed_size
from bastion.proxy.upload_journal import UploadJournal
from bastion.proxy.upstream import Asked, UpstreamUnavailable
from tests.unit.proxy_stage import PieceBody, Stage, body_of, crc32c_text, document, reason
from tests.unit.proxy_uploads import INSERT, Uploader, noise, sealed_under_one_index, unsealed

FIRST = plain_capacity(0)
WHOLE = plain_capacity(1)
KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def nothing_stored(stage: Stage) -> bool:
    return stage.ask_endpoint("GET", "/storage/v1/b/vault/o/thing").status == 404


def stored(stage: Stage) -> bytes:
    return unsealed(stage, *stage.stored("thing"))


def notes(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "uploads"
    return sorted(folder.iterdir()) if folder.exists() else []


def failing(stage: Stage, method: str, times: int = 1) -> None:
    """Lets the next requests of that method reach the service, and loses its answers."""
    left = [times]

    def after(asked: Asked, answer: Any) -> None:
        if asked.method == method and asked.body != b"" and left[0]:
            left[0] -= 1
            raise UpstreamUnavailable("the connection broke")

    stage.upstream.after = after


def cutting(stage: Stage, size: int) -> None:
    """Breaks the next request that brings bytes after so many of them."""
    left = [1]

    def cut(asked: Asked) -> int | None:
        if asked.method == "PUT" and asked.body != b"" and left[0]:
            left[0] -= 1
            return size
        return None

    stage.upstream.cut = cut


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


# Breaks and restarts.


def test_after_a_break_the_same_chunk_can_be_sent_again(stage: Stage) -> None:
    data = noise(3 * MIB)
    upload = Uploader(stage, data)
    upload.send(0, MIB)
    cutting(stage, 100)
    assert reason(upload.send(MIB, 2 * MIB)) == (503, "backendError")
    # Nothing of it was kept, so what was acknowledged before still is.
    assert upload.status().headers.get("Range") == f"bytes=0-{MIB - 1}"
    assert upload.send(MIB, 2 * MIB).status == 308
    document(upload.send(2 * MIB, 3 * MIB))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_after_a_break_what_the_service_kept_need_not_be_sent_again(stage: Stage) -> None:
    data = noise(3 * MIB)
    upload = Uploader(stage, data)
    cutting(stage, 3 * SEGMENT_BYTES + 1000)
    assert reason(upload.send(0, 2 * MIB)) == (503, "backendError")
    assert upload.status().headers.get("Range") == f"bytes=0-{plain_offset(3) - 1}"
    document(upload.send(plain_offset(3), 3 * MIB))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_a_service_that_kept_fewer_bytes_than_it_was_sent_is_asked_and_believed(stage: Stage) -> None:
    data = noise(2 * MIB)
    upload = Uploader(stage, data)
    once = [1]

    def after(asked: Asked, answer: Any) -> None:
        if asked.method == "PUT" and answer.status == 308 and asked.body != b"" and once:
            once.pop()
            answer.headers.set("Range", f"bytes=0-{SEGMENT_BYTES - 1}")

    stage.upstream.after = after
    assert reason(upload.send(0, MIB)) == (503, "backendError")
    assert upload.status().status == 308
    document(upload.send(upload.received, 2 * MIB))
    assert stored(stage) == data


def test_an_upload_whose_last_answer_was_lost_has_ended_all_the_same(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    failing(stage, "PUT")
    assert reason(upload.run(MIB)) == (503, "backendError")
    shown = document(upload.status())
    assert (shown["size"], shown["crc32c"]) == (str(MIB), crc32c_text(data))
    assert "gcsproxy-sums" in stage.stored("thing")[0]["metadata"]


def test_a_process_that_ended_before_the_sums_were_added_leaves_that_to_the_next(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    failing(stage, "PUT")
    upload.run(MIB)
    stage.restart()
    assert document(upload.status())["crc32c"] == crc32c_text(data)
    assert "gcsproxy-sums" in stage.stored("thing")[0]["metadata"]


def test_other_bytes_in_a_place_that_was_sent_are_never_sealed(stage: Stage, tmp_path: Path) -> None:
    upload = Uploader(stage, noise(2 * MIB))
    cutting(stage, 100)
    upload.send(0, MIB)
    upload.data = noise(2 * MIB, seed=1)
    assert reason(upload.send(0, MIB))[0] == 410
    assert sealed_under_one_index(stage)
    assert stage.requests[-1].startswith("DELETE")
    assert notes(tmp_path) == []
    assert reason(upload.status())[0] == 410


def test_other_bytes_are_not_sealed_by_the_next_process_either(stage: Stage) -> None:
    upload = Uploader(stage, noise(2 * MIB))
    cutting(stage, 100)
    upload.send(0, MIB)
    stage.restart()
    assert upload.status().status == 308
    upload.data = noise(2 * MIB, seed=1)
    assert reason(upload.send(0, MIB))[0] == 410
    assert sealed_under_one_index(stage)


def test_the_next_process_goes_on_from_what_the_service_has(stage: Stage) -> None:
    data = noise(3 * MIB)
    upload = Uploader(stage, data)
    assert upload.send(0, 2 * MIB).status == 308
    stage.restart()
    # What waited in the memory of the first process is lost, and the client is told so.
    assert upload.status().headers.get("Range") == f"bytes=0-{plain_offset(8) - 1}"
    document(upload.send(plain_offset(8), 3 * MIB))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_an_upload_goes_on_after_another_process_was_killed_in_the_middle_of_a_chunk(stage: Stage) -> None:
    data = noise(3 * MIB)
    upload = Uploader(stage, data)
    cutting(stage, 2 * SEGMENT_BYTES + 7)
    upload.send(0, 2 * MIB)
    stage.restart()
    assert upload.status().headers.get("Range") == f"bytes=0-{plain_offset(2) - 1}"
    document(upload.send(plain_offset(2), 3 * MIB))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_an_upload_nobody_knows_is_refused_and_none_of_its_bytes_go_up(stage: Stage) -> None:
    answer = stage.ask_endpoint("POST", f"{INSERT}?uploadType=resumable&name=thing", {})
    upload_id = answer.headers.get("X-GUploader-UploadID")
    target = f"{INSERT}?uploadType=resumable&upload_id={upload_id}"
    assert reason(stage.ask("PUT", target, b"plaintext"))[0] == 410
    assert all(body == b"" for _, body in stage.upstream.asked)
    assert nothing_stored(stage)


def test_an_upload_with_two_names_is_refused(stage: Stage) -> None:
    upload = Uploader(stage, b"data")
    stage.forget_asked()
    assert stage.ask("PUT", f"{upload.target}&upload_id=other", b"data").status == 400
    assert stage.requests == []


def test_an_upload_whose_notes_lack_what_the_service_has_is_refused(stage: Stage, tmp_path: Path) -> None:
    upload = Uploader(stage, noise(2 * MIB))
    upload.send(0, MIB)
    (file,) = notes(tmp_path)
    with file.open("rb+") as opened:
        opened.truncate(len(opened.readline()) + 40)
    stage.restart()
    assert reason(upload.status())[0] == 410


def test_a_truncated_chunk_keeps_what_came_before(stage: Stage) -> None:
    data = noise(2 * MIB)
    upload = Uploader(stage, data)
    upload.send(0, 300_000)
    headers = [("Content-Range", f"bytes 300000-{MIB - 1}/{2 * MIB}")]
    body = PieceBody(iter([data[300_000:900_000]]), MIB - 300_000)
    with pytest.raises(BodyTruncated):
        stage.ask("PUT", upload.target, body, headers=headers)
    document(upload.send(upload.asked(), 2 * MIB))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_a_chunk_that_breaks_off_after_its_whole_segments_keeps_these(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 1000)
    end = FIRST + WHOLE + 1000
    headers = [("Content-Range", f"bytes 1000-{end - 1}/{MIB}")]
    with pytest.raises(BodyTruncated):
        stage.ask("PUT", upload.target, PieceBody(iter([data[1000 : end - 1]]), end - 1000), headers=headers)
    assert upload.asked() == plain_offset(2)
    document(upload.send(plain_offset(2), MIB))
    assert stored(stage) == data


def test_a_last_segment_that_the_service_kept_without_ending_the_upload_is_sent_again(stage: Stage) -> None:
    data = noise(FIRST + 2 * WHOLE)
    upload = Uploader(stage, data)
    upload.send(0, FIRST + WHOLE + 1000)
    cutting(stage, 100)
    assert upload.send(FIRST + WHOLE + 1000, len(data)).status == 503
    whole = Response(status=308, headers=Headers([("Range", f"bytes=0-{sealed_size(len(data)) - 1}")]))
    said = [whole]
    stage.upstream.before = lambda asked: said.pop() if asked.body == b"" and said else None
    assert upload.asked() == FIRST + WHOLE + 1000
    document(upload.send(FIRST + WHOLE + 1000, len(data)))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_a_truncated_last_chunk_stores_nothing(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    headers = [("Content-Range", f"bytes 0-{MIB - 1}/{MIB}")]
    with pytest.raises(BodyTruncated):
        stage.ask("PUT", upload.target, PieceBody(iter([data[:-1]]), MIB), headers=headers)
    assert nothing_stored(stage)
    document(upload.send(upload.asked(), MIB))
    assert stored(stage) == data


def test_while_the_key_service_is_down_an_upload_of_an_earlier_process_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 512 * KIB)
    stage.restart()

    def down(*_: object, **__: object) -> bytes:
        raise KmsUnavailable("the key service is down")

    stage.forget_asked()
    with monkeypatch.context() as patched:
        patched.setattr(stage.kms, "unwrap", down)
        assert reason(upload.send(512 * KIB, MIB))[0] == 503
    assert stage.requests == []
    document(upload.send(upload.asked(), MIB))
    assert stored(stage) == data


@pytest.mark.parametrize("status", [404, 410])
def test_an_upload_that_the_service_has_forgotten_is_forgotten(stage: Stage, tmp_path: Path, status: int) -> None:
    upload = Uploader(stage, noise(MIB))
    stage.upstream.before = lambda asked: Response(status=status) if asked.method == "PUT" else None
    assert upload.send(0, 512 * KIB).status == status
    assert notes(tmp_path) == []


@pytest.mark.parametrize("status", [401, 429, 503])
def test_what_the_service_refuses_for_now_can_be_sent_again(stage: Stage, status: int) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    refusals = [Response(status=status, headers=Headers(), body=b"no")]
    stage.upstream.before = lambda asked: refusals.pop() if asked.method == "PUT" and refusals else None
    assert upload.send(0, 512 * KIB).status == status
    assert upload.send(0, 512 * KIB).status == 308
    document(upload.send(512 * KIB, MIB))
    assert stored(stage) == data


def test_uploads_that_were_begun_encrypted_go_on_so_when_encryption_is_turned_off(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 512 * KIB)
    stage.restart(encrypt=False)
    document(upload.send(upload.asked(), MIB))
    assert stored(stage) == data


def test_uploads_outside_of_the_mapped_prefix_pass_as_they_are_also_after_a_restart(
    stage: Stage, tmp_path: Path
) -> None:
    data = noise(MIB)
    insert = "/upload/storage/v1/b/attic/o?uploadType=resumable"
    answer = stage.ask("POST", insert, {"name": "open/thing", "crc32c": crc32c_text(data)})
    target = answer.headers.get("Location").removeprefix("https://storage.googleapis.com")
    stage.ask("PUT", target, data[: 512 * KIB], headers=[("Content-Range", f"bytes 0-{512 * KIB - 1}/{MIB}")])
    stage.restart()
    headers = [("Content-Range", f"bytes {512 * KIB}-{MIB - 1}/{MIB}")]
    document(stage.ask("PUT", target, data[512 * KIB :], headers=headers))
    assert stage.stored("open/thing", bucket="attic")[1] == data
    assert notes(tmp_path) == []
    assert document(stage.ask("PUT", target, headers=[("Content-Range", "bytes */*")]))["size"] == str(MIB)


# Notes on disk, and turns.


def test_notes_are_private_and_name_no_key_no_session_and_no_content(stage: Stage, tmp_path: Path) -> None:
    data = b"the quick brown fox " * 40_000
    upload = Uploader(stage, data)
    upload.send(0, 600_000)
    (file,) = notes(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    content = file.read_bytes()
    upload_id = upload.target.partition("upload_id=")[2].partition("&")[0]
    assert upload_id.encode() not in content and upload_id not in file.name
    assert b"brown fox" not in content
    with stage.parts.resumables.turn("vault", upload_id, lambda _: b"") as slot:
        assert slot.session is not None
        key = slot.session.key
    assert key not in content and base64.b64encode(key) not in content and key.hex().encode() not in content


def test_notes_of_uploads_that_are_over_are_removed(stage: Stage, tmp_path: Path) -> None:
    upload = Uploader(stage, noise(MIB))
    upload.send(0, 512 * KIB)
    assert len(notes(tmp_path)) == 1
    document(upload.send(512 * KIB, MIB))
    assert notes(tmp_path) == []


def test_notes_that_are_older_than_eight_days_are_swept_at_the_start(stage: Stage, tmp_path: Path) -> None:
    Uploader(stage, noise(10))
    (file,) = notes(tmp_path)
    now = time.time()
    os.utime(file, (now, now - 8 * 24 * 3600 + 60))
    UploadJournal(file.parent, now=lambda: now)
    assert file.exists()
    UploadJournal(file.parent, now=lambda: now + 120)
    assert not file.exists()


def test_without_room_for_its_notes_no_upload_begins(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "uploads").write_text("in the way")
    answer = stage.ask("POST", f"{INSERT}?uploadType=resumable&name=thing", {})
    assert reason(answer) == (503, "backendError")
    assert stage.requests[-1].startswith("DELETE")


def test_two_requests_of_one_upload_are_never_mixed(stage: Stage, tmp_path: Path) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    impatient = Resumables(tmp_path / "uploads", patience_seconds=0.0)
    object.__setattr__(stage.parts, "resumables", impatient)
    meanwhile: list[tuple[int, str]] = []

    def before(asked: Asked) -> Response | None:
        if asked.method == "PUT" and asked.body != b"":
            meanwhile.append(reason(upload.status()))
        return None

    stage.upstream.before = before
    document(upload.run(MIB))
    assert meanwhile == [(503, "backendError")]
    assert stored(stage) == data


def test_an_upload_that_had_to_leave_the_memory_goes_on_from_its_notes(stage: Stage, tmp_path: Path) -> None:
    object.__setattr__(stage.parts, "resumables", Resumables(tmp_path / "uploads", most=1))
    data = noise(MIB)
    one, two = Uploader(stage, data), Uploader(stage, data, name="other")
    one.send(0, 600_000)
    two.send(0, 600_000)
    assert one.asked() == plain_offset(2)
    document(one.send(plain_offset(2), MIB))
    assert stored(stage) == data


def test_no_message_or_log_line_of_a_broken_upload_names_it(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    upload = Uploader(stage, noise(MIB), headers=[("Authorization", "Bearer top-secret-token")])
    cutting(stage, 100)
    said = body_of(upload.send(0, 512 * KIB)).decode()
    upload.data = noise(MIB, seed=1)
    said += body_of(upload.send(0, 512 * KIB)).decode() + body_of(upload.status()).decode() + caplog.text
    upload_id = upload.target.partition("upload_id=")[2].partition("&")[0]
    assert upload_id not in said
    assert "top-secret-token" not in said


# Everything at once.

_MOVES = st.sampled_from(["send", "send", "send", "restart", "cut", "lose", "short", "again", "other"])
# Hypothesis likes small numbers; what is interesting happens around segments.
_AMOUNTS = st.builds(
    lambda segments, more: max(0, segments * SEGMENT_BYTES + more),
    st.integers(0, 4),
    st.integers(-100, 100) | st.integers(0, SEGMENT_BYTES),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.builds(lambda segments, more: segments * SEGMENT_BYTES + more, st.integers(0, 8), st.integers(0, 300))
    | st.sampled_from([FIRST, FIRST + WHOLE, FIRST + 3 * WHOLE]),
    known=st.booleans(),
    moves=st.lists(st.tuples(_MOVES, _AMOUNTS), max_size=14),
)
def test_whatever_happens_the_object_is_exactly_the_bytes_or_is_not_there(
    tmp_path_factory: pytest.TempPathFactory, size: int, known: bool, moves: list[tuple[str, int]]
) -> None:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    data = noise(size)
    upload = Uploader(stage, data, total=size if known else None)
    for move, amount in moves:
        stage.upstream.after = lambda asked, answer: None
        stage.upstream.cut = lambda asked: None
        match move:
            case "restart":
                stage.restart()
            case "cut":
                cutting(stage, amount)
            case "lose":
                failing(stage, "PUT")
            case "short":
                _truncated(upload, amount)
                continue
            case "again":
                upload.received = max(0, upload.received - amount)
            case "other":
                _others(upload, amount)
                continue
        answer = upload.send(upload.received, min(size, upload.received + amount))
        assert answer.status in (200, 308, 400, 410, 503)
        if answer.status in (400, 503):
            answer = upload.status()
            assert answer.status in (200, 308, 410)
        if answer.status in (200, 410):
            break
    stage.upstream.after = lambda asked, answer: None
    stage.upstream.cut = lambda asked: None
    answer = upload.status()
    if answer.status == 308:
        answer = upload.send(upload.asked(), size, last=True)
    assert answer.status in (200, 410)
    if answer.status == 200:
        assert document(answer)["size"] == str(size)
        assert stored(stage) == data
    else:
        assert any(move == "other" for move, _ in moves)
        assert nothing_stored(stage)
    assert sealed_under_one_index(stage)


def _truncated(upload: Uploader, amount: int) -> None:
    """A chunk whose connection ends in its middle."""
    end = min(len(upload.data), upload.received + amount + 2)
    if end > upload.received + 1:
        body = PieceBody(iter([upload.data[upload.received : end - 1]]), end - upload.received)
        headers = [("Content-Range", upload.content_range(upload.received, end))]
        try:
            answer = upload.stage.ask("PUT", upload.target, body, headers=headers)
        except BodyTruncated:
            pass
        else:
            assert answer.status in (400, 410, 503)
        upload.asked()


def _others(upload: Uploader, amount: int) -> None:
    """A client that lost its data sends others, and its connection to us ends."""
    end = min(len(upload.data), upload.received + amount + 2)
    if end > upload.received + 1:
        others = noise(end - upload.received - 1, seed=1)
        headers = [("Content-Range", upload.content_range(upload.received, end))]
        # They are on their way when the connection to the service ends, too: it keeps none of them.
        cutting(upload.stage, 100)
        try:
            answer = upload.stage.ask(
                "PUT", upload.target, PieceBody(iter([others]), end - upload.received), headers=headers
            )
        except BodyTruncated:
            pass
        else:
            assert answer.status in (400, 410, 503)
        upload.asked()
