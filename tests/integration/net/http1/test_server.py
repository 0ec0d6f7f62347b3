"""The HTTP server, spoken to byte by byte as odd clients do."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.net.http1 import BodyTruncated, Disconnect, FileSlice, Headers, Request, Response
from tests.support.http1_servers import Client, Start, echo, start

__all__ = ["start"]


def test_requests_follow_each_other_on_one_connection(start: Start) -> None:
    with Client(start()) as client:
        for number in range(3):
            client.send(b"PUT /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab" % number)
            status, headers, body = client.answer()
            assert (status, body) == (200, b"PUT /%d  2 ab" % number)
            assert headers.get("connection") == ""
            assert headers.get("date").endswith("GMT")


def test_pipelined_requests_are_answered_in_their_order(start: Start) -> None:
    with Client(start()) as client:
        client.send(
            b"POST /1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
            b"POST /2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1;x=y\r\nf\r\n0\r\nTrailer: t\r\n\r\n"
            b"\r\n"  # an old client's extra line after a body
            b"GET /3?q HTTP/1.1\n\n"
        )
        assert [client.answer()[2] for _ in range(3)] == [b"POST /1  3 abc", b"POST /2  3 def", b"GET /3 q 0 "]


def test_a_request_that_arrives_byte_by_byte_is_understood(start: Start) -> None:
    with Client(start()) as client:
        for byte in b"PUT /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
            client.send(bytes([byte]))
        assert client.answer()[2] == b"PUT /a  3 abc"


def test_identity_with_a_length_and_chunked_with_a_length_are_taken_as_tensorflow_means_them(start: Start) -> None:
    with Client(start()) as client:
        client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n")
        assert client.answer()[2] == b"POST /a  0 "
        client.send(b"PUT /a HTTP/1.1\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
        assert client.answer()[2] == b"PUT /a  1 x"


def test_an_absolute_target_is_a_path_and_an_authority(start: Start) -> None:
    server = start(lambda request: Response(status=200, body=f"{request.path} {request.authority}".encode()))
    with Client(server) as client:
        client.send(b"GET http://bucket.example/o?x HTTP/1.1\r\nHost: proxy\r\n\r\n")
        assert client.answer()[2] == b"/o bucket.example"


def test_http_1_0_ends_unless_it_asks_to_stay(start: Start) -> None:
    server = start(lambda _: Response(status=200, body=iter([b"un", b"known"])))
    with Client(server) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        status, headers, body = client.answer()
        assert (status, headers.get("connection"), headers.get("transfer-encoding"), body) == (
            200,
            "close",
            "",
            b"unknown",
        )
    with Client(start()) as client:
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert client.answer()[1].get("connection") == "keep-alive"
        client.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert client.answer()[1].get("connection") == "close"
        assert client.rest() == b""


def test_100_continue_is_sent_when_the_handler_wants_the_body_and_only_then(start: Start) -> None:
    reading = threading.Event()

    def reads_late(request: Request) -> Response:
        assert reading.wait(10)
        return echo(request)

    with Client(start(reads_late)) as client:
        client.send(b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.socket.recv(1, socket.MSG_PEEK)
        client.socket.settimeout(10)
        reading.set()
        assert client.answer()[0] == 100
        client.send(b"ab")
        assert client.answer()[::2] == (200, b"PUT /a  2 ab")
        # The body is on its way already: nothing to ask for.
        client.send(b"PUT /b HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab")
        assert client.answer()[::2] == (200, b"PUT /b  2 ab")


def test_a_client_that_waits_for_100_continue_and_is_refused_gets_an_orderly_end(start: Start) -> None:
    with Client(start(lambda _: Response(status=412, body=b"no"))) as client:
        client.send(b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
        status, headers, body = client.answer()
        assert (status, headers.get("connection"), body) == (412, "close", b"no")
        client.send(b"too late ")
        assert client.rest() == b""


@pytest.mark.parametrize(
    "framed",
    [b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000, b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"],
)
def test_a_small_body_that_nobody_read_does_not_cost_the_connection(start: Start, framed: bytes) -> None:
    with Client(start(lambda _: Response(status=503))) as client:
        for _ in range(2):
            client.send(b"PUT /a HTTP/1.1\r\n" + framed)
            assert client.answer()[0] == 503


def test_the_refusal_of_a_large_body_reaches_a_client_that_goes_on_sending(start: Start) -> None:
    with Client(start(lambda _: Response(status=403, body=b"no"))) as client:
        client.send(b"PUT /a HTTP/1.1\r\nContent-Length: 20000000\r\n\r\n")
        # Reads nothing before all is sent, as most libraries do.
        client.send(b"x" * 20_000_000)
        status, headers, body = client.answer()
        assert (status, headers.get("connection"), body) == (403, "close", b"no")


def test_head_204_and_304_have_no_body(start: Start, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")

    def answers(request: Request) -> Response:
        if request.path == "/file":
            descriptor = os.open(tmp_path / "f", os.O_RDONLY)
            return Response(status=200, body=FileSlice(descriptor=descriptor, start=2, length=5))
        if request.path == "/said":
            return Response(status=200, headers=Headers([("content-length", "77")]))
        return Response(status=int(request.path[1:]), body=b"never")

    with Client(start(answers)) as client:
        for target, length in ((b"HEAD /file", "5"), (b"HEAD /said", "77"), (b"GET /204", ""), (b"GET /304", "")):
            client.send(target + b" HTTP/1.1\r\n\r\n")
            assert client.answer(bodiless=True)[1].get("content-length") == length
        client.send(b"GET /200 HTTP/1.1\r\n\r\n")
        assert client.answer()[2] == b"never"


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_part_of_a_file_is_sent_and_its_descriptor_closed(start: Start, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    opened = []

    def answers(_: Request) -> Response:
        opened.append(os.open(tmp_path / "f", os.O_RDONLY))
        return Response(status=206, body=FileSlice(descriptor=opened[0], start=3, length=size - 5))

    server = start(answers)
    with Client(server) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\nGET /")
        assert client.answer()[2] == content[3:-2]
    # The client may see the last byte before the server closes the file.
    server.close()
    with pytest.raises(OSError):
        os.fstat(opened[0])


def test_a_file_that_became_shorter_is_not_passed_off_as_whole(start: Start, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)

    def answers(request: Request) -> Response:
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        return Response(status=200, body=FileSlice(descriptor=descriptor, start=0, length=int(request.path[1:])))

    server = start(answers)
    with Client(server) as client:
        client.send(b"GET /200000 HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.rest()
    (tmp_path / "f").write_bytes(b"x" * 5)
    with Client(server) as client:
        client.send(b"GET /10 HTTP/1.1\r\n\r\n")
        assert client.answer()[0] == 500


def test_an_iterable_is_sent_in_chunks_or_as_long_as_it_says(start: Start) -> None:
    def answers(request: Request) -> Response:
        headers = Headers([("Content-Length", "6")] if request.path == "/sized" else [])
        return Response(status=200, headers=headers, body=iter([b"", b"abc", b"", b"def"]))

    with Client(start(answers)) as client:
        client.send(b"GET /sized HTTP/1.1\r\n\r\nGET /unsized HTTP/1.1\r\n\r\n")
        sized, unsized = client.answer(), client.answer()
    assert (sized[1].get("content-length"), sized[1].get("transfer-encoding"), sized[2]) == ("6", "", b"abcdef")
    assert (unsized[1].get("content-length"), unsized[1].get("transfer-encoding"), unsized[2]) == (
        "",
        "chunked",
        b"abcdef",
    )


def test_an_empty_piece_sends_the_head_at_once_and_notices_a_peer_that_has_left(start: Start) -> None:
    more, noticed = threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        try:
            yield b""
            assert more.wait(10)
            yield b"one"
            while True:
                time.sleep(0.01)
                yield b""
        finally:
            noticed.set()

    server = start(lambda _: Response(status=200, body=pieces()))
    with Client(server) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        client.socket.settimeout(5)
        head = client.socket.recv(4096)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Transfer-Encoding: chunked\r\n" in head
        more.set()
        assert client.socket.recv(4096) == b"3\r\none\r\n"
        assert not noticed.is_set()
    assert noticed.wait(5)


def test_a_handler_that_fails_costs_a_500_and_nothing_else(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def failing_body() -> Iterator[bytes]:
        raise RuntimeError("the iterator's own fault")
        yield b""

    def answers(request: Request) -> Response:
        if request.path == "/raises":
            raise KeyError("the handler's own fault")
        if request.path == "/body":
            return Response(status=200, body=failing_body())
        return echo(request)

    with Client(start(answers)) as client:
        client.send(b"GET /raises HTTP/1.1\r\n\r\n")
        assert client.answer()[0] == 500
        client.send(b"GET /body HTTP/1.1\r\n\r\n")
        assert client.answer()[0] == 500
    assert "the handler's own fault" in caplog.text
    assert "the iterator's own fault" in caplog.text


@pytest.mark.parametrize("headers", [[], [("Content-Length", "6")]])
def test_a_body_that_fails_half_way_is_not_passed_off_as_whole(start: Start, headers: list[tuple[str, str]]) -> None:
    def half() -> Iterator[bytes]:
        yield b"abc"
        raise RuntimeError("no more")

    with Client(start(lambda _: Response(status=200, headers=Headers(headers), body=half()))) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            while client.socket.recv(4096):
                pass


def test_a_handler_can_drop_or_reset_the_connection(start: Start) -> None:
    def answers(request: Request) -> Response:
        raise Disconnect(reset=request.path == "/reset")

    server = start(answers)
    with Client(server) as client:
        client.send(b"GET /drop HTTP/1.1\r\n\r\n")
        assert client.socket.recv(1) == b""
    with Client(server) as client:
        client.send(b"GET /reset HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            client.socket.recv(1)


def test_a_header_value_cannot_add_lines(start: Start) -> None:
    headers = Headers([("x-goog-meta-note", "a\r\nSet-Cookie: b"), ("x-wide", "\u2603")])
    with Client(start(lambda _: Response(status=200, headers=headers, body=b"body"))) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        _, answered, body = client.answer()
    assert ("set-cookie" in answered, answered.get("x-goog-meta-note"), answered.get("x-wide"), body) == (
        False, "a  Set-Cookie: b", "?", b"body",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnope\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000, 400),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 431),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", 431),
    ],
)
def test_a_broken_request_is_refused_and_ends_the_connection(start: Start, sent: bytes, status: int) -> None:
    with Client(start()) as client:
        client.send(sent)
        answered, headers, _ = client.answer()
        assert (answered, headers.get("connection")) == (status, "close")
        assert client.rest() == b""


def test_a_body_that_breaks_off_is_the_handlers_to_know_and_nobodys_to_answer(start: Start) -> None:
    seen = []
    done = threading.Event()

    def answers(request: Request) -> Response:
        try:
            return echo(request)
        except BodyTruncated as error:
            seen.append(error)
            raise
        finally:
            done.set()

    server = start(answers)
    with Client(server) as client:
        client.send(b"PUT / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.rest() == b""
    assert done.wait(10)
    assert len(seen) == 1


def test_a_body_is_read_in_pieces_and_exact_amounts(start: Start) -> None:
    def answers(request: Request) -> Response:
        first = request.body.read(5)
        pieces = [*request.body.pieces(4)]
        assert request.body.finished
        assert (request.body.read(), request.body.read(3)) == (b"", b"")
        return Response(status=200, body=first + b"|" + b"".join(pieces) + b"|%d" % max(map(len, pieces)))

    with Client(start(answers)) as client:
        client.send(b"PUT / HTTP/1.1\r\nContent-Length: 20\r\n\r\n01234")
        client.send(b"56789abcdefghij")
        assert client.answer()[2] == b"01234|56789abcdefghij|4"
        client.send(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n012\r\n6\r\n345678\r\n0\r\n\r\n")
        assert client.answer()[2] == b"01234|5678|4"
