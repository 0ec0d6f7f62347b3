"""Uploads over several processes that share nothing but the notes: whatever happens, and to whichever it happens."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bastion.net.http1 import BodyTruncated, BytesBody, Headers, HttpServer, Request, Response
from bastion.proxy.handler import Handler, handler
from bastion.proxy.objects import KnownObjects
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.segments import SEGMENT_BYTES
from bastion.proxy.serving.hand_over import Inbox
from bastion.proxy.serving.siblings import Siblings
from bastion.proxy.uploads.resumables import Resumables
from tests.support.proxy_stage import HOST, PieceBody, Stage, body_of, document
from tests.support.proxy_uploads import (
    FIRST,
    WHOLE,
    Uploader,
    cutting,
    failing,
    noise,
    notes,
    sealed_under_one_index,
    unsealed,
)


class _Requests(Inbox):
    """Counts the requests that are passed on, so that a test can wait for what nobody waits for any more."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way = 0
        self._changed = threading.Condition()

    def give(self, connection: socket.socket, *, patience_seconds: float = 0.0) -> bool:
        with self._changed:
            self._under_way += 1
        return super().give(connection, patience_seconds=patience_seconds)

    def counted(self, answer: Handler) -> Handler:
        def answer_and_count(request: Request) -> Response:
            try:
                return answer(request)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()

        return answer_and_count

    def await_end(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: not self._under_way, 30)


class Processes:
    """The processes of one proxy, as far as they know; a test says which gets the next request.

    Attributes:
        turn: Who gets it; beyond their number it begins again with the first.
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._servers: list[HttpServer] = []
        self._handlers: list[Handler] = []
        self._inboxes: list[_Requests] = []
        self.hold = 0
        stage._proxy = self._answer

    def start(self, count: int) -> None:
        """Another proxy takes over, with so many processes."""
        self.close()
        inboxes = self._inboxes = [_Requests() for _ in range(count)]
        for number, inbox in enumerate(inboxes):
            parts = replace(
                self._stage.parts,
                envelopes=Envelopes(self._stage.kms, clock=self._stage.clock),
                objects=KnownObjects(),
                resumables=Resumables(self._folder / "uploads"),
                siblings=Siblings(number, inboxes),
            )
            self._handlers.append(handler(parts))
            self._servers.append(HttpServer(inbox.counted(self._handlers[-1]), listener=inbox))
            self._servers[-1].open()

    def ask(self, number: int, request: Request) -> Response:
        """What one process answers, read to its end."""
        answer = self._handlers[number % len(self._handlers)](request)
        return Response(status=answer.status, headers=answer.headers, body=body_of(answer))

    def await_end(self) -> None:
        """Who broke off did not wait for the end of what was passed on."""
        for inbox in self._inboxes:
            inbox.await_end()

    def close(self) -> None:
        for server in self._servers:
            server.close(5.0)
        self._servers, self._handlers = [], []

    def _answer(self, request: Request) -> Response:
        return self.ask(self.hold, request)


@contextmanager
def processes(stage: Stage, folder: Path, count: int) -> Iterator[Processes]:
    started = Processes(stage, folder)
    started.start(count)
    try:
        yield started
    finally:
        started.close()


# How the service, and the proxy, say that there is no such upload any more.
_GONE = (404, 410, 499)
_KINDS = st.sampled_from(
    ["send", "send", "send", "twice", "ask", "again", "other", "cut", "lose", "short", "restart", "delete"]
)
# Hypothesis likes small numbers; what is interesting happens around segments.
_AMOUNTS = st.builds(
    lambda segments, more: max(0, segments * SEGMENT_BYTES + more),
    st.integers(0, 3),
    st.integers(-100, 100) | st.integers(0, SEGMENT_BYTES),
)
_SIZES = st.builds(
    lambda segments, more: segments * SEGMENT_BYTES + more, st.integers(0, 5), st.integers(0, 300)
) | st.sampled_from([FIRST, FIRST + WHOLE, FIRST + 3 * WHOLE])


@dataclass(frozen=True, kw_only=True)
class Move:
    """What happens next.

    Attributes:
        upload: To which upload.
        process: Who gets the request.
    """

    kind: str
    upload: int
    process: int
    amount: int


_MOVES = st.builds(Move, kind=_KINDS, upload=st.integers(0, 1), process=st.integers(0, 2), amount=_AMOUNTS)


@dataclass
class Client:
    """One upload's client, and what it may expect.

    Attributes:
        acknowledged: Bytes that it was told are here; only another proxy may take some of that back.
        over: The last status that ended it; 0: it goes on.
    """

    uploader: Uploader
    name: str
    acknowledged: int = 0
    over: int = 0
    sent_others: bool = False
    deleted: bool = False

    def heard(self, answer: Response) -> None:
        """An answer to a chunk or a question."""
        said = (answer.status, answer.body)
        assert answer.status in (200, 308, 400, *_GONE, 503), said
        if answer.status == 308:
            assert self.over == 0, said
            last = answer.headers.get("Range").rpartition("-")[2]
            received = int(last) + 1 if last else 0
            assert self.acknowledged <= received <= len(self.uploader.data)
            self.acknowledged = received
        elif answer.status == 200:
            assert self.over in (0, 200), said
            self.over = 200
        elif answer.status in _GONE:
            assert self.over != 200, said
            assert self.sent_others or self.deleted, said
            self.over = answer.status

    def ask(self) -> None:
        self.heard(self.uploader.status())


def _happens(stage: Stage, cluster: Processes, clients: list[Client], move: Move) -> None:
    client = clients[move.upload % len(clients)]
    uploader, size = client.uploader, len(client.uploader.data)
    cluster.hold = move.process
    start, end = uploader.received, min(size, uploader.received + move.amount)
    match move.kind:
        case "restart":
            cluster.start(1 + move.amount % 3)
            for each in clients:
                each.acknowledged = 0
            return
        case "ask":
            client.ask()
            return
        case "delete":
            if client.over != 200:
                client.deleted = True
                assert stage.ask("DELETE", uploader.target).status in _GONE
                client.over = client.over or 410
            return
        case "short":
            _broken_off(client, uploader.data[start : max(start, end - 1)], end)
            return
        case "other":
            client.sent_others = True
            # They are on their way when the connection to the service ends, too: it keeps none of them.
            cutting(stage, 100)
            _broken_off(client, noise(max(0, end - start - 1), seed=7), end)
            return
        case "twice":
            _at_once(cluster, client, start, end)
            return
        case "again":
            start = max(0, start - move.amount)
        case "cut":
            cutting(stage, move.amount)
        case "lose":
            failing(stage, "PUT")
    client.heard(uploader.send(start, end))
    client.ask()


def _broken_off(client: Client, data: bytes, end: int) -> None:
    """A chunk whose connection ends before its last byte."""
    uploader = client.uploader
    start = uploader.received
    if end > start + 1:
        body = PieceBody(iter([data]), end - start)
        headers = [("Content-Range", uploader.content_range(start, end))]
        with suppress(BodyTruncated):
            client.heard(uploader.stage.ask("PUT", uploader.target, body, headers=headers))


def _at_once(cluster: Processes, client: Client, start: int, end: int) -> None:
    """The same chunk over two connections, to two processes, while somebody asks a third."""
    uploader = client.uploader
    path, _, query = uploader.target.partition("?")

    def ask(number: int) -> Response:
        at, until = (start, end) if number < 2 else (0, 0)
        headers = Headers([("Content-Range", uploader.content_range(at, until))])
        request = Request(
            method="PUT", target=uploader.target, path=path, query=query, headers=headers,
            body=BytesBody(uploader.data[at:until]), authority=HOST, secure=True,
        )  # fmt: skip
        return cluster.ask(cluster.hold + number, request)

    with ThreadPoolExecutor(3) as pool:
        statuses = {answer.status for answer in pool.map(ask, range(3))}
    # 400: the process that had what comes before it is gone.
    assert statuses <= {200, 308, 400, *_GONE}, statuses
    # Which answer came first is not known, and a later one must not have less.
    client.ask()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(_SIZES, st.booleans()), min_size=1, max_size=2),
    count=st.integers(1, 3),
    moves=st.lists(_MOVES, max_size=14),
)
def test_whatever_happens_to_uploads_over_several_processes_each_object_is_its_bytes_or_is_not_there(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, bool]], count: int, moves: list[Move]
) -> None:
    folder = tmp_path_factory.mktemp("stage")
    stage = Stage(folder)
    with processes(stage, folder, count) as cluster:
        clients = []
        for number, (size, known) in enumerate(sizes):
            cluster.hold = number + 1
            name = f"thing-{number}"
            uploader = Uploader(stage, noise(size, number), total=size if known else None, name=name)
            clients.append(Client(uploader=uploader, name=name))
        for move in moves:
            _happens(stage, cluster, clients, move)
            # What a process is still at must not have the next move's mishap.
            cluster.await_end()
            stage.upstream.after = lambda asked, answer: None
            stage.upstream.cut = lambda asked: None
        for number, client in enumerate(clients):
            cluster.hold = number
            _brought_to_its_end(client, cluster)
    for client in clients:
        found = stage.ask_endpoint("GET", f"/storage/v1/b/vault/o/{client.name}")
        if client.over == 200:
            assert unsealed(stage, *stage.stored(client.name)) == client.uploader.data
        else:
            assert found.status == 404
    assert notes(folder) == []
    assert sealed_under_one_index(stage)


def _brought_to_its_end(client: Client, cluster: Processes) -> None:
    uploader, size = client.uploader, len(client.uploader.data)
    client.ask()
    cluster.hold += 1
    if not client.over:
        answer = uploader.send(uploader.received, size, last=True)
        client.heard(answer)
        if client.over == 200:
            assert document(answer)["size"] == str(size)
    assert client.over
    client.ask()
