"""The way to the storage service: what is sent, what comes back, and everything that can go wrong between."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator

import pytest

from bastion.core.errors import Refused
from bastion.emulators.gcs import certificate
from bastion.net.http1 import Headers, HttpServer, Request, Response
from bastion.proxy.service.forwarding import ForwardingUpstream
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from tests.support.scripted_server import answering, nobody, read_exactly, read_head, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BIG = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> certificate.ServerIdentity:
    return certificate.ensure(tmp_path_factory.mktemp("tls"), now=datetime.datetime.now(datetime.timezone.utc))


@contextlib.contextmanager
def forwarding(port: int, **settings: object) -> Iterator[ForwardingUpstream]:
    upstream = ForwardingUpstream(endpoint=f"http://127.0.0.1:{port}", **settings)  # type: ignore[arg-type]
    try:
        yield upstream
    finally:
        upstream.close()


@contextlib.contextmanager
def forwarding_tls(port: int, identity: certificate.ServerIdentity) -> Iterator[ForwardingUpstream]:
    trust = ssl.create_default_context(cafile=identity.ca_file)
    upstream = ForwardingUpstream(endpoint=f"https://localhost:{port}", trust=trust)
    try:
        yield upstream
    finally:
        upstream.close()


def asked(method: str = "GET", **fields: object) -> Asked:
    return Asked(method=method, target="/b/o?x=1", authority="storage.googleapis.com", **fields)  # type: ignore[arg-type]


def test_a_request_arrives_with_the_fields_that_are_not_the_connections_own() -> None:
    heads = []
    headers = Headers(
        [
            ("X-Goog-Meta-A", "caf\xe9"),
            ("Connection", "X-Hop, keep-alive"),
            ("X-Hop", "1"),
            ("Host", "evil"),
            ("Transfer-Encoding", "identity"),
            ("content-length", "99"),
            ("Proxy-Authorization", "Basic secret"),
            ("Expect", "100-continue"),
            ("Authorization", "Bearer t"),
        ]
    )

    def script(connection: socket.socket) -> None:
        heads.append(read_head(connection) + read_exactly(connection, 4))
        connection.sendall(OK)

    with serving(script) as port, forwarding(port) as upstream:
        answer = upstream.ask(asked("PUT", headers=headers, body=b"body"))
        assert (answer.status, answer.reason, answer.length, answer.read()) == (200, "OK", 2, b"ok")
    assert heads == [
        b"PUT /b/o?x=1 HTTP/1.1\r\nHost: storage.googleapis.com\r\nX-Goog-Meta-A: caf\xe9\r\n"
        # The last but one is for an endpoint in the storage service's place.
        b"Authorization: Bearer t\r\nX-Forwarded-Proto: https\r\nContent-Length: 4\r\n\r\nbody"
    ]


def test_what_could_start_another_request_is_not_sent() -> None:
    with serving() as port, forwarding(port) as upstream:
        for headers in (Headers([("A", "b\r\nC: d")]), Headers([("A b", "c")]), Headers([("A:", "c")])):
            with contextlib.suppress(UpstreamUnavailable), pytest.raises(ValueError, match="field"):
                upstream.ask(asked(headers=headers))


def test_blanks_and_odd_bytes_of_a_target_are_escaped() -> None:
    heads = []

    def script(connection: socket.socket) -> None:
        heads.append(read_head(connection))
        connection.sendall(OK)

    with serving(script) as port, forwarding(port) as upstream:
        upstream.ask(Asked(method="GET", target="/a b\xe9?c\r\nd", authority="storage.googleapis.com")).close()
    assert heads[0].startswith(b"GET /a%20b%E9?c%0D%0Ad HTTP/1.1\r\n")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_large_bodies_go_both_ways(identity: certificate.ServerIdentity, secure: bool) -> None:
    def echo(request: Request) -> Response:
        body = bytearray(len(BIG))
        assert request.body.readinto(memoryview(body)) == len(BIG)
        assert not request.body.read()
        known = request.headers.get("x-known")
        return Response(status=200, body=bytes(body) if known else iter([bytes(body)]))

    server = HttpServer(echo, tls=identity.context() if secure else None)
    server.open()
    pieces = [BIG[at : at + 100_000] for at in range(0, len(BIG), 100_000)]
    with forwarding_tls(server.port, identity) if secure else forwarding(server.port) as upstream:
        for known in ("1", ""):
            for body, length in ((BIG, None), (iter(pieces), len(BIG)), (iter(pieces), None)):
                answer = upstream.ask(asked("PUT", body=body, length=length, headers=Headers([("X-Known", known)])))
                assert answer.length == (len(BIG) if known else None)
                got = bytearray(len(BIG) + 10)
                assert answer.readinto(memoryview(got)) == len(BIG)
                assert got[: len(BIG)] == BIG
                answer.close()
    server.close(0.0)


def ending(close: bytes) -> bytes:
    return OK.replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n")


@pytest.mark.parametrize(
    ("scripts", "settings"),
    [
        (((OK, OK), (OK,)), {}),
        (((OK,), (OK,), (OK,)), {"idle_seconds": 0.0}),
        (((ending(b"Connection: close\r\n"),), (OK, OK)), {}),
        (((ending(b"connection: foo, Close\r\n"),), (OK, OK)), {}),
    ],
    ids=["ended by the service", "idle for long", "announced", "announced among others"],
)
def test_a_connection_is_used_again_as_long_as_it_may_be(
    scripts: tuple[tuple[bytes, ...], ...], settings: dict[str, float]
) -> None:
    with serving(*(answering(*script) for script in scripts)) as port, forwarding(port, **settings) as upstream:
        for _ in range(3):
            assert upstream.ask(asked()).read() == b"ok"


def test_a_connection_is_used_again_over_tls(identity: certificate.ServerIdentity) -> None:
    scripts = (answering(OK, OK), answering(OK))
    with serving(*scripts, tls=identity.context()) as port, forwarding_tls(port, identity) as upstream:
        for _ in range(3):
            assert upstream.ask(asked()).read() == b"ok"


def test_a_read_that_meets_a_dying_connection_is_asked_once_more_and_a_write_is_not() -> None:
    def answers_once_and_dies_asked_again(connection: socket.socket) -> None:
        answering(OK)(connection)
        read_head(connection)

    die = answers_once_and_dies_asked_again
    with serving(die, die) as port, forwarding(port) as upstream:
        assert upstream.ask(asked()).read() == b"ok"
        assert upstream.ask(asked()).read() == b"ok"
        with pytest.raises(UpstreamUnavailable):
            upstream.ask(asked("POST", body=b""))


def test_an_answer_that_was_not_read_leaves_the_next_one_whole() -> None:
    large = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    small = b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nno!!!"
    with serving(answering(small, large), answering(OK)) as port, forwarding(port) as upstream:
        upstream.ask(asked()).close()
        upstream.ask(asked()).close()
        assert upstream.ask(asked()).read() == b"ok"


def test_an_answer_to_head_has_no_body_and_keeps_its_length_in_the_headers() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n"
    with serving(answering(head, OK)) as port, forwarding(port) as upstream:
        answer = upstream.ask(asked("HEAD"))
        assert (answer.length, answer.headers.get("content-length"), answer.read()) == (0, "12345", b"")
        assert upstream.ask(asked()).read() == b"ok"


def test_words_that_come_before_the_answer_are_not_the_answer() -> None:
    many = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
    with serving(answering(many)) as port, forwarding(port) as upstream:
        assert upstream.ask(asked()).status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"garbage\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"\x00" * 70_000,
    ],
    ids=lambda answer: answer[:30].decode("latin-1").replace("\0", "zero "),
)
def test_what_is_no_answer_is_an_error(answer: bytes) -> None:
    with serving(answering(answer)) as port, forwarding(port) as upstream, pytest.raises(UpstreamUnavailable):
        upstream.ask(asked())


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nnone\r\n",
    ],
    ids=["sized", "between chunks", "in a chunk", "no chunk"],
)
def test_a_body_that_breaks_off_is_an_error(
    identity: certificate.ServerIdentity, answer: bytes, secure: bool, reset: bool
) -> None:
    read = threading.Event()

    def script(connection: socket.socket) -> None:
        answering(answer)(connection)
        if reset:
            assert read.wait(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))

    with (
        serving(script, tls=identity.context() if secure else None) as port,
        forwarding_tls(port, identity) if secure else forwarding(port) as upstream,
    ):
        got = upstream.ask(asked())
        assert got.read(5) == b"short"
        read.set()
        with pytest.raises(UpstreamUnavailable, match="broke off"):
            got.read()
        got.close()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("ends", [False, True], ids=["that reads no more", "that ends the connection"])
def test_a_refusal_that_comes_before_the_body_was_sent_is_returned(
    identity: certificate.ServerIdentity, secure: bool, ends: bool
) -> None:
    asked_for = []
    finished = threading.Event()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 2\r\n\r\nno")
        if not ends:
            assert finished.wait(10)

    def pieces() -> Iterator[bytes]:
        for at in range(2_000):
            asked_for.append(at)
            yield BIG[:262144]

    with (
        serving(script, tls=identity.context() if secure else None) as port,
        forwarding_tls(port, identity) if secure else forwarding(port, silence_seconds=1.0) as upstream,
    ):
        answer = upstream.ask(asked("PUT", body=pieces(), length=2_000 * 262144))
        assert (answer.status, answer.read()) == (412, b"no")
        finished.set()
    assert len(asked_for) < 2_000


def test_a_success_that_comes_before_the_body_was_sent_is_an_error() -> None:
    def script(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(OK)

    def pieces() -> Iterator[bytes]:
        while True:
            yield BIG[:262144]

    with serving(script) as port, forwarding(port) as upstream, pytest.raises(UpstreamUnavailable):
        upstream.ask(asked("PUT", body=pieces(), length=1 << 40))


@pytest.mark.parametrize("length", [None, 500_000], ids=["chunked", "sized"])
def test_a_body_that_fails_leaves_the_service_without_a_whole_request(length: int | None) -> None:
    received = []

    def script(connection: socket.socket) -> None:
        while piece := connection.recv(65536):
            received.append(piece)

    def pieces() -> Iterator[bytes]:
        yield b"a" * 100_000
        raise ZeroDivisionError

    with serving(script) as port, forwarding(port) as upstream, pytest.raises(ZeroDivisionError):
        upstream.ask(asked("PUT", body=pieces(), length=length))
    whole = b"".join(received)
    assert whole.count(b"a" * 100_000) == 1
    assert not whole.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("length", [9, 11], ids=["too short", "too long"])
def test_a_body_of_another_length_than_announced_is_never_sent_as_a_whole(length: int) -> None:
    def script(connection: socket.socket) -> None:
        while connection.recv(65536):
            pass

    with serving(script) as port, forwarding(port) as upstream, pytest.raises(ValueError, match="bytes"):
        upstream.ask(asked("PUT", body=iter([b"12345", b"67890"]), length=length))


def test_a_service_that_never_answers_is_an_error() -> None:
    done = threading.Event()

    def script(connection: socket.socket) -> None:
        read_head(connection)
        assert done.wait(10)

    with serving(script) as port, forwarding(port, silence_seconds=0.1) as upstream:
        with pytest.raises(UpstreamUnavailable, match="did not answer"):
            upstream.ask(asked())
        done.set()


def test_nobody_there_and_no_name_are_errors() -> None:
    with nobody() as port, forwarding(port) as upstream, pytest.raises(UpstreamUnavailable, match="cannot connect"):
        upstream.ask(asked())
    upstream = ForwardingUpstream()
    for authority in ("", "a b", "user@storage.googleapis.com", "h:0", "h:99999"):
        with pytest.raises(UpstreamUnavailable, match="not a valid host"):
            upstream.ask(Asked(method="GET", target="/", authority=authority))


def test_a_certificate_that_is_not_trusted_gets_not_a_byte_of_the_request(
    identity: certificate.ServerIdentity,
) -> None:
    def script(connection: socket.socket) -> None:
        with pytest.raises(ssl.SSLError):
            identity.context().wrap_socket(connection, server_side=True).recv(100)

    with serving(script) as port:
        upstream = ForwardingUpstream(endpoint=f"https://localhost:{port}")
        with pytest.raises(UpstreamUnavailable, match="cannot make a safe connection"):
            upstream.ask(asked("PUT", body=b"secret"))


@pytest.mark.parametrize(
    "url", ["storage.googleapis.com", "ftp://h", "http://", "http://h:x", "http://h/path", "https://u@h"]
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="endpoint"):
        ForwardingUpstream(endpoint=url)


def test_many_threads_ask_at_once() -> None:
    def answer(request: Request) -> Response:
        return Response(status=200, body=request.body.read())

    server = HttpServer(answer)
    server.open()
    failed = []

    def ask(number: int, upstream: ForwardingUpstream) -> None:
        for turn in range(30):
            body = b"%d %d" % (number, turn)
            if upstream.ask(asked("POST", body=body)).read() != body:
                failed.append(body)

    with forwarding(server.port, idle_max=3) as upstream:
        threads = [threading.Thread(target=ask, args=(number, upstream)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    server.close(0.0)
    assert failed == []
