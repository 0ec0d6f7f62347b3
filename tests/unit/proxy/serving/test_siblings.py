"""An upload's requests reach the process where it began, whichever process has the connection."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bastion.net.http1 import HttpServer, Request, Response
from bastion.proxy.calls import Parts
from bastion.proxy.handler import Handler, handler
from bastion.proxy.objects import KnownObjects
from bastion.proxy.serving.hand_over import Inbox
from bastion.proxy.serving.siblings import Siblings
from bastion.proxy.uploads.resumables import Resumables
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire.declared_sums import Declared
from bastion.storage_wire.refusals import Refusal
from tests.support.proxy_stage import Stage, body_of, document, reason
from tests.support.proxy_uploads import (
    INSERT,
    KIB,
    MIB,
    Uploader,
    noise,
    notes,
    nothing_stored,
    sealed_under_one_index,
    stored,
)
from tests.support.waiting import until


class Pair:
    """Two processes of one proxy, as far as they know: only the storage service and the folder are the same.

    Attributes:
        turn: Who gets the client's next request; after each it is the other's turn.
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.inboxes = [Inbox(), Inbox()]
        self.parts = [self._parts(stage, folder, number) for number in (0, 1)]
        self._handlers: list[Handler] = [handler(parts) for parts in self.parts]
        self.servers = [
            HttpServer(answer, listener=inbox) for answer, inbox in zip(self._handlers, self.inboxes, strict=True)
        ]
        self.hold = 0
        for server in self.servers:
            server.open()

    def _parts(self, stage: Stage, folder: Path, number: int) -> Parts:
        return replace(
            stage.parts,
            objects=KnownObjects(),
            resumables=Resumables(folder / "uploads"),
            siblings=Siblings(number, self.inboxes),
        )

    def answer(self, request: Request) -> Response:
        number, self.hold = self.hold, 1 - self.hold
        return self._handlers[number](request)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def pair(stage: Stage, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(stage, tmp_path)
    stage._proxy = pair.answer
    yield pair
    for server in pair.servers:
        server.close(0.0)


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("chunk", [MIB, 256 * KIB, 100_000], ids=["large", "segments", "odd"])
def test_chunks_that_come_to_either_process_make_one_object(stage: Stage, chunk: int) -> None:
    data = noise(3 * MIB + 17)
    upload = Uploader(stage, data)
    shown = document(upload.run(chunk))
    assert shown["size"] == str(len(data))
    assert stored(stage) == data
    assert sealed_under_one_index(stage)


def test_the_tail_that_one_process_holds_is_known_to_who_asks_the_other(stage: Stage, pair: Pair) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    for asked in (0, 1):
        upload.send(0, 300_001)
        pair.hold = asked
        assert upload.asked() == 300_001
    document(upload.send(300_001, MIB))
    assert stored(stage) == data


@pytest.mark.usefixtures("pair")
def test_an_md5_is_followed_over_all_chunks(stage: Stage) -> None:
    data = noise(MIB)
    md5 = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
    wrong = base64.b64encode(bytes(16)).decode()
    upload = Uploader(stage, data, headers=[("X-Goog-Hash", f"md5={wrong}")])
    assert reason(upload.run(300_000)) == (400, "invalid")
    assert nothing_stored(stage)
    upload = Uploader(stage, data, headers=[("X-Goog-Hash", f"md5={md5}")])
    assert document(upload.run(300_000))["md5Hash"] == md5


@pytest.mark.usefixtures("pair")
def test_other_bytes_in_the_same_place_are_refused_by_whichever_process_gets_them(stage: Stage) -> None:
    upload = Uploader(stage, noise(MIB))
    stage.upstream.cut = lambda asked: 100 if asked.method == "PUT" and asked.body != b"" else None
    assert upload.send(0, 600_000).status == 503
    stage.upstream.cut = lambda asked: None
    upload.data = noise(MIB, seed=1)
    assert upload.send(0, 600_000).status == 410
    assert sealed_under_one_index(stage)


def test_an_upload_is_given_up_by_either_process(stage: Stage, pair: Pair, tmp_path: Path) -> None:
    upload = Uploader(stage, noise(MIB))
    upload.send(0, 600_000)
    pair.hold = 1
    assert stage.ask("DELETE", upload.target).status in (204, 499)
    assert notes(tmp_path) == []
    for _ in range(2):
        assert upload.status().status in (404, 410, 499)


@pytest.mark.usefixtures("pair")
def test_who_did_not_hear_that_the_object_is_there_may_ask_either(stage: Stage) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    made = document(upload.run(MIB))
    for _ in range(2):
        again = document(upload.status())
        assert (again["generation"], again["size"], again["crc32c"]) == (
            made["generation"], made["size"], made["crc32c"],
        )  # fmt: skip


@pytest.mark.usefixtures("pair")
def test_an_upload_that_is_not_sealed_passes_through_either(stage: Stage) -> None:
    data = noise(MIB)
    began = stage.ask("POST", "/upload/storage/v1/b/attic/o?uploadType=resumable&name=open", {})
    target = began.headers.get("Location").removeprefix("https://storage.googleapis.com")
    for start, end in ((0, 512 * KIB), (512 * KIB, MIB)):
        fields = [("Content-Range", f"bytes {start}-{end - 1}/{MIB}")]
        answer = stage.ask("PUT", target, data[start:end], headers=fields)
    assert answer.status == 200, body_of(answer)
    assert stage.stored("open", bucket="attic")[1] == data


def test_a_process_that_takes_no_requests_any_more_is_a_503_and_the_upload_lives(stage: Stage, pair: Pair) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 600_000)
    pair.servers[0].close(0.0)
    pair.hold = 1
    assert reason(upload.send(600_000, MIB)) == (503, "backendError")
    pair.hold = 0
    document(upload.send(600_000, MIB))
    assert stored(stage) == data


def test_without_a_descriptor_for_the_other_process_a_client_is_told_to_try_again(stage: Stage, pair: Pair) -> None:
    data = noise(MIB)
    upload = Uploader(stage, data)
    upload.send(0, 600_000)
    # The connections by which that was passed on are closed a moment after the answer.
    until(lambda: not any(server._open_connections() for server in pair.servers))
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    # One is left: for the notes, which say whose the upload is, but not for two ends of a connection.
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, most))
    os.close(free)
    pair.hold = 1
    try:
        assert reason(upload.status()) == (503, "backendError")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    document(upload.send(600_000, MIB))
    assert stored(stage) == data


def test_an_upload_that_begins_while_another_process_looks_for_it_is_not_taken_by_both(
    stage: Stage, tmp_path: Path
) -> None:
    here, there = (Resumables(tmp_path / "uploads") for _ in range(2))
    # Nobody knows it, though the service gave a client that name long ago, and now gives it to another one.
    process = here.process_of("again")
    declared = Declared(crc32c=None, md5=None)
    beginning = Beginning(
        bucket="vault", name="thing", envelope=None, declared=declared, total=None, fields="", process=1
    )
    there.begin("again", beginning, None)
    with pytest.raises(Refusal, match="try again") as refused, here.hold("vault", "again", process, lambda _: b""):
        pass
    assert refused.value.status == 503
    assert here.process_of("again") == 1


def test_fewer_processes_than_there_were_share_the_uploads_among_them(stage: Stage, pair: Pair, tmp_path: Path) -> None:
    data = noise(MIB)
    pair.hold = 1
    upload = Uploader(stage, data)
    pair.hold = 1
    upload.send(0, 600_000)
    assert len(notes(tmp_path)) == 1
    # The proxy starts again, with one process.
    stage.restart()
    start = upload.asked()
    assert 0 < start <= 600_000
    document(upload.send(start, MIB))
    assert stored(stage) == data


def test_no_other_process_is_asked_about_an_upload_that_nobody_knows(stage: Stage, pair: Pair) -> None:
    for server in pair.servers:
        server.close(0.0)
    for _ in range(2):
        answer = stage.ask("PUT", f"{INSERT}?uploadType=resumable&upload_id=nobodys", b"x")
        assert answer.status in (404, 410)
