"""Connections that one process of the proxy hands to another."""

from __future__ import annotations

import socket
import threading

import pytest

from bastion.net.http1 import HttpServer, Response
from bastion.proxy.serving.hand_over import Inbox
from bastion.proxy.serving.workload import Workload


def test_a_connection_goes_on_where_it_was_with_what_the_client_sent_already() -> None:
    inbox = Inbox()
    client, other = socket.socketpair()
    client.sendall(b"early")
    with client:
        with other:
            assert inbox.give(other)
        taken, _ = inbox.accept()
        with taken:
            assert taken.recv(100) == b"early"
            taken.sendall(b"answer")
        assert client.recv(100) == b"answer"
        assert client.recv(100) == b""
    inbox.close()


def test_a_server_serves_what_is_handed_to_it() -> None:
    inbox = Inbox()
    server = HttpServer(lambda request: Response(status=200, body=request.path.encode()), listener=inbox)
    server.open()
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as client,
        ):
            accepted, _ = listener.accept()
            with accepted:
                assert inbox.give(accepted)
            client.sendall(b"GET /here HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            said = b"".join(iter(lambda: client.recv(4096), b""))
    finally:
        server.close()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.endswith(b"/here")


def test_who_takes_nothing_is_full_and_then_not_given_more() -> None:
    inbox = Inbox()
    own, other = socket.socketpair()
    with own, other:
        given = 0
        while inbox.give(other):
            given += 1
            assert given < 10_000
        assert given > 0
        assert not inbox.give(other, patience_seconds=0.01)
        inbox.accept()[0].close()
        assert inbox.give(other, patience_seconds=5.0)
    inbox.close()


def test_who_waits_for_room_has_it_as_soon_as_one_connection_is_taken() -> None:
    inbox = Inbox()
    own, other = socket.socketpair()
    with own, other:
        while inbox.give(other):
            pass
        given: list[bool] = []
        waiters = [
            threading.Thread(target=lambda: given.append(inbox.give(other, patience_seconds=60.0)), daemon=True)
            for _ in range(2)
        ]
        for waiter in waiters:
            waiter.start()
        for _ in waiters:
            inbox.accept()[0].close()
        for waiter in waiters:
            waiter.join(20)
        assert given == [True, True]
    inbox.close()


def test_an_inbox_that_is_shut_wakes_who_waits_and_takes_nothing() -> None:
    inbox = Inbox()
    raised: list[OSError] = []

    def wait() -> None:
        try:
            inbox.accept()
        except OSError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    inbox.shutdown(socket.SHUT_RDWR)
    waiter.join(10)
    assert len(raised) == 1
    own, other = socket.socketpair()
    with own, other, pytest.raises(OSError, match="Broken pipe"):
        inbox.give(other)
    inbox.close()


def test_each_process_counts_its_own_work() -> None:
    work = Workload(3)
    first, last = work.counter(0), work.counter(2)
    first.begin()
    last.begin()
    last.begin()
    first.end()
    assert [work.at_hand(process) for process in range(3)] == [0, 0, 2]
