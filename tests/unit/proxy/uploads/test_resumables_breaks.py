"""Resumable uploads that break off, or go on in another process: what is kept, and what is never sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bastion.core.errors import KmsUnavailable
from bastion.net.http1 import BodyTruncated, Headers, Response
from bastion.proxy.sealed.segments import SEGMENT_BYTES, plain_offset, sealed_size
from bastion.proxy.service.upstream import Asked
from tests.support.proxy_stage import PieceBody, Stage, crc32c_text, document, reason
from tests.support.proxy_uploads import (
    FIRST,
    INSERT,
    KIB,
    MIB,
    WHOLE,
    Uploader,
    cutting,
    failing,
    noise,
    notes,
    nothing_stored,
    sealed_under_one_index,
    stored,
)


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
