"""What the proxy notes of resumable uploads, two requests of one of them, and everything at once."""

from __future__ import annotations

import base64
import os
import stat
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bastion.net.http1 import BodyTruncated, Response
from bastion.proxy.sealed.segments import SEGMENT_BYTES, plain_offset
from bastion.proxy.service.upstream import Asked
from bastion.proxy.uploads.resumables import Resumables
from bastion.proxy.uploads.upload_journal import UploadJournal
from tests.support.proxy_stage import PieceBody, Stage, body_of, document, reason
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
    with stage.parts.resumables.hold("vault", upload_id, None, lambda _: b"") as slot:
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


@pytest.mark.parametrize("way", ["bytes */N", "the last chunk", "all of it", "a chunked body", "in one request"])
def test_an_upload_that_would_end_before_the_bytes_that_a_restart_lost_is_begun_anew(stage: Stage, way: str) -> None:
    data = noise(512 * KIB)
    upload = Uploader(stage, data, total=None)
    assert upload.send(0, len(data)).status == 308
    stage.restart()
    held = upload.asked()
    assert held == plain_offset(2) == 524216
    fields, body = {
        "bytes */N": ([("Content-Range", f"bytes */{held}")], b""),
        "the last chunk": ([("Content-Range", f"bytes 262144-{held - 1}/{held}")], data[262144:held]),
        "all of it": ([("Content-Range", f"bytes 0-{held - 1}/{held}")], data[:held]),
        "a chunked body": ([], PieceBody([data[:held]], None)),
        "in one request": ([], data[:held]),
    }[way]

    stage.forget_asked()
    assert reason(stage.ask("PUT", upload.target, body, headers=fields)) == (410, "gone")

    # Nothing that could end the upload reaches the service.
    assert not [asked for asked, _ in stage.upstream.asked if "524288-" in asked.headers.get("Content-Range")]
    assert reason(stage.ask("PUT", upload.target, headers=[("Content-Range", "bytes */*")])) == (410, "gone")
    assert nothing_stored(stage)
