"""How connections to the HTTP server end: silence, too many of them, and its own end."""

from __future__ import annotations

import contextlib
import resource
import threading
import time

import pytest

from bastion.net.http1 import Request, Response
from tests.support.http1_servers import Client, Start, echo, start
from tests.support.waiting import until

__all__ = ["start"]


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was told its last response is waited for, as long as a test may take."""
    monkeypatch.setattr("bastion.net.http1.connection._LINGER_SILENCE_SECONDS", 60.0)
    monkeypatch.setattr("bastion.net.http1.connection._LINGER_SECONDS", 60.0)


def test_a_client_that_trickles_its_head_costs_one_thread_for_a_while(start: Start) -> None:
    with Client(start(head_seconds=0.1)) as client:
        client.send(b"GET / HT")
        assert client.answer()[0] == 408
        assert client.rest() == b""


def test_a_silent_connection_is_ended_and_a_silent_body_given_up(start: Start) -> None:
    with Client(start(idle_seconds=0.1)) as client:
        assert client.rest() == b""
    with Client(start(idle_seconds=1.0)) as client:
        client.send(b"PUT / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        assert client.rest() == b""


def test_one_connection_too_many_ends_the_one_that_was_idle_the_longest(start: Start) -> None:
    server = start(connections_max=2)
    with Client(server) as first, Client(server) as second:
        for client in (first, second):
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert client.answer()[0] == 200
            # The client has its answer a moment before the server counts it as idle.
            until(lambda: all(connection.idle_since is not None for connection in server._open_connections()))
        with Client(server) as third:
            third.send(b"GET / HTTP/1.1\r\n\r\n")
            assert third.answer()[0] == 200
            assert first.rest() == b""
            second.send(b"GET / HTTP/1.1\r\n\r\n")
            assert second.answer()[0] == 200


def test_idle_connections_leave_files_to_open(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (12, 12))
    server = start()
    with contextlib.ExitStack() as open_clients:
        clients = [open_clients.enter_context(Client(server)) for _ in range(6)]
        clients[-1].send(b"GET / HTTP/1.1\r\n\r\n")
        assert clients[-1].answer()[0] == 200
        assert [client.rest() for client in clients[:3]] == [b""] * 3
        assert len(server._open_connections()) == 3


def test_a_connection_that_is_not_admitted_ends_before_it_is_read(start: Start) -> None:
    asked = []

    def nobody(peer: tuple[str, int], local: tuple[str, int]) -> bool:
        asked.append((peer, local))
        return False

    server = start(admit=nobody)
    with Client(server) as client:
        assert client.socket.recv(1) == b""
        assert asked == [(client.socket.getsockname(), client.socket.getpeername())]


@pytest.mark.parametrize(("sent", "warned"), [(b"", False), (b"GET", True)])
def test_a_connection_that_closes_before_it_asks_anything_is_not_called_refused(
    start: Start, caplog: pytest.LogCaptureFixture, sent: bytes, warned: bool
) -> None:
    left = threading.Event()

    def cannot_tell(_peer: tuple[str, int], _local: tuple[str, int]) -> bool:
        assert left.wait(10)
        return False

    server = start(admit=cannot_tell)
    with Client(server) as client:
        client.send(sent)
    until(lambda: bool(server._open_connections()))
    left.set()
    until(lambda: not server._open_connections())
    assert ("refused a connection" in caplog.text) == warned


def test_closing_lets_the_request_at_hand_end_and_idle_connections_go(start: Start) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def answers(request: Request) -> Response:
        if request.path == "/slow":
            entered.set()
            assert go_on.wait(10)
        return echo(request)

    server = start(answers)
    with Client(server) as idle, Client(server) as busy:
        idle.send(b"GET / HTTP/1.1\r\n\r\n")
        assert idle.answer()[0] == 200
        busy.send(b"GET /slow HTTP/1.1\r\n\r\n")
        assert entered.wait(10)
        closing = threading.Thread(target=server.close, args=(100.0,))
        closing.start()
        assert idle.rest() == b""
        go_on.set()
        status, headers, _ = busy.answer()
        assert (status, headers.get("connection")) == (200, "close")
        # The client says nothing of its end, and the server waits a second for it.
        closing.join(30)
        assert not closing.is_alive()


@pytest.mark.usefixtures("long_waits")
def test_closing_lets_a_client_that_still_sends_read_its_last_response(start: Start) -> None:
    server = start(lambda _: Response(status=403, body=b"no"))
    with Client(server) as client:
        client.send(b"PUT / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n")
        # It has answered, and waits for the client's end.
        until(lambda: [connection._lingers for connection in server._open_connections()] == [True])
        closing = threading.Thread(target=server.close, args=(100.0,))
        closing.start()
        until(lambda: server._listener is None)
        client.send(b"x" * 5_000_000)
        assert client.answer()[::2] == (403, b"no")
        assert client.rest() == b""
    closing.join(30)
    assert not closing.is_alive()


@pytest.mark.usefixtures("long_waits")
def test_one_connection_too_many_ends_one_whose_client_still_sends(start: Start) -> None:
    server = start(connections_max=1)
    with Client(server) as sending:
        sending.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert sending.answer()[0] == 200
        with Client(server) as another:
            another.send(b"GET / HTTP/1.1\r\n\r\n")
            assert another.answer()[0] == 200


def test_closing_tears_off_a_client_that_neither_sends_nor_reads(start: Start) -> None:
    server = start(lambda _: Response(status=200, body=b"x" * 50_000_000))
    with Client(server) as reader, Client(server) as writer:
        reader.send(b"GET / HTTP/1.1\r\n\r\n")
        writer.send(b"PUT / HTTP/1.1\r\nContent-Length: 5\r\n\r\n")
        assert reader.socket.recv(1) == b"H"
        began = time.monotonic()
        server.close(0.0)
        assert time.monotonic() - began < 5


def test_a_port_that_was_served_can_be_served_again_at_once(start: Start) -> None:
    first = start()
    port = first.port
    with Client(first) as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert client.answer()[0] == 200
        first.close()
        again = start(port=port)
        with Client(again) as other:
            other.send(b"GET / HTTP/1.1\r\n\r\n")
            assert other.answer()[0] == 200
