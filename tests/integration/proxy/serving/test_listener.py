"""The proxy's listener, spoken to as clients do: CONNECT, TLS within it, tunnels, and what goes wrong there."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from bastion.emulators.gcs import certificate
from bastion.net.http1 import BodyTruncated, HttpServer, Request, Response
from bastion.proxy.service.intercepted import is_storage
from bastion.proxy.serving.authority import BUNDLE_FILE, ProxyAuthority
from bastion.proxy.serving.listener import ProxyListener
from tests.support.scripted_server import nobody, read_exactly, read_head, server_threads, serving
from tests.support.waiting import until

HOST = "storage.googleapis.com"
BIG = os.urandom(3_000_000)
RESET = struct.pack("@ii", 1, 0)

Start = Callable[..., ProxyListener]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ProxyAuthority:
    return ProxyAuthority(tmp_path_factory.mktemp("state"))


def tell(request: Request) -> Response:
    """Says what came."""
    body = request.body.read()
    words = f"{request.method} {request.authority} {request.path}?{request.query} {request.secure} {len(body)}"
    return Response(status=200, body=words.encode())


@pytest.fixture
def start(authority: ProxyAuthority) -> Iterator[Start]:
    """Starts proxies; each must be able to end at once, whatever a test did to it."""
    before = set(server_threads())
    with contextlib.ExitStack() as ending:

        def begin(handler: Callable[[Request], Response] = tell, **settings: object) -> ProxyListener:
            listener = ProxyListener(
                handler,
                intercepts=lambda host, _port: is_storage(host),
                context=authority.context,
                **settings,  # type: ignore[arg-type]
            )
            listener.open()
            ending.callback(listener.close, 0.0)
            return listener

        yield begin
    # A server counts a thread as ended in the thread's last steps.
    until(lambda: set(server_threads()) <= before)


def connected(listener: ProxyListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), 10)


def through(listener: ProxyListener, target: str) -> socket.socket:
    """A connection after CONNECT was answered."""
    connection = connected(listener)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = read_head(connection)
    assert head.startswith(b"HTTP/1.1 200 Connection established\r\n")
    assert b"Length" not in head
    assert b"Connection:" not in head
    return connection


def secured(
    listener: ProxyListener, authority: ProxyAuthority, host: str = HOST, target: str = f"{HOST}:443"
) -> ssl.SSLSocket:
    context = ssl.create_default_context(cadata=authority.public_pem.decode())
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context.wrap_socket(through(listener, target), server_hostname=host, suppress_ragged_eofs=False)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The next response with a Content-Length."""
    head = read_head(connection)
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    return int(head.split()[1]), read_exactly(connection, length)


def get(path: bytes, host: str = HOST) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: " + host.encode() + b"\r\n\r\n"


def test_requests_for_the_storage_service_reach_the_handler_one_after_the_other(
    start: Start, authority: ProxyAuthority
) -> None:
    with secured(start(), authority) as client:
        assert client.selected_alpn_protocol() == "http/1.1"
        client.sendall(get(b"/b/o?alt=media"))
        assert answer(client) == (200, b"GET storage.googleapis.com /b/o?alt=media True 0")
        client.sendall(get(b"/1") + get(b"/2") + b"PUT /3 HTTP/1.1\r\nHost: www.googleapis.com\r\n")
        client.sendall(b"Content-Length: 3\r\n\r\nabc" + get(b"/4", "b.storage.googleapis.com"))
        assert [answer(client)[1] for _ in range(4)] == [
            b"GET storage.googleapis.com /1? True 0",
            b"GET storage.googleapis.com /2? True 0",
            b"PUT www.googleapis.com /3? True 3",
            b"GET b.storage.googleapis.com /4? True 0",
        ]


@pytest.mark.parametrize(
    "target", [f"{HOST}:80", f"{HOST}:8443", "STORAGE.GoogleAPIs.com:443", "storage.googleapis.com.:443"]
)
def test_no_spelling_of_a_storage_host_gets_a_tunnel(start: Start, authority: ProxyAuthority, target: str) -> None:
    with secured(start(), authority, target=target) as client:
        client.sendall(get(b"/"))
        assert answer(client)[0] == 200


def test_clients_with_a_proxy_and_the_bundle_just_work(
    start: Start, authority: ProxyAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = []

    def keep(request: Request) -> Response:
        body = bytearray(len(BIG) + 1)
        received.append(request.body.readinto(memoryview(body)))
        return Response(status=200, body=bytes(body[:-1]))

    listener = start(keep)
    authority.publish(tmp_path)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / BUNDLE_FILE))
    monkeypatch.delenv("no_proxy", raising=False)
    with requests.Session() as session:
        assert session.put(f"https://bucket.{HOST}/o", data=BIG, timeout=10).content == BIG
        assert session.put(f"https://{HOST}/o", data=iter([BIG[:10], BIG[10:]]), timeout=10).content == BIG
    assert received == [len(BIG)] * 2


def test_a_client_that_waits_for_a_word_before_its_body_gets_it(start: Start, authority: ProxyAuthority) -> None:
    with secured(start(), authority) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nHost: " + HOST.encode())
        client.sendall(b"\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert answer(client)[1].endswith(b" 4")


def test_a_request_for_another_host_within_a_storage_connection_is_refused(
    start: Start, authority: ProxyAuthority
) -> None:
    with secured(start(), authority) as client:
        for host in ("example.com", "user@storage.googleapis.com", "storage.googleapis.com.example.com"):
            client.sendall(get(b"/", host))
            assert answer(client)[0] == 421
        client.sendall(b"GET https://example.com/ HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n")
        assert answer(client)[0] == 421
        client.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n")
        assert answer(client)[0] == 400


def test_a_request_in_the_clear_reaches_the_handler_for_a_storage_host_only(start: Start) -> None:
    with connected(start()) as client:
        client.sendall(f"GET http://{HOST}/b/o?q HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer(client) == (200, f"GET {HOST} /b/o?q False 0".encode())
        client.sendall(b"GET http://example.com/ HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n")
        status, words = answer(client)
        assert (status, b"no_proxy" in words) == (403, True)
        client.sendall(b"GET https://storage.googleapis.com/ HTTP/1.1\r\nHost: storage.googleapis.com\r\n\r\n")
        assert answer(client)[0] == 400
        client.sendall(get(b"/b/o"))
        status, words = answer(client)
        assert (status, b"https_proxy" in words) == (400, True)


@pytest.mark.parametrize(
    "target",
    ["example.com", "http://example.com/", "/", "u@h:443", ":443", "h:0", "h:x", "storage%2egoogleapis.com:443"],
)
def test_a_connect_to_no_host_and_port_is_refused(start: Start, target: str) -> None:
    with connected(start()) as client:
        client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert answer(client)[0] == 400


def test_a_client_that_does_not_trust_us_or_speaks_no_tls_harms_nobody_else(
    start: Start, authority: ProxyAuthority
) -> None:
    listener = start()
    with pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(through(listener, f"{HOST}:443"), server_hostname=HOST)
    with through(listener, f"{HOST}:80") as client:
        client.sendall(get(b"/secret"))
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in client.recv(1000)
    with secured(listener, authority) as client:
        client.sendall(get(b"/"))
        assert answer(client)[0] == 200


def test_tls_that_begins_before_connect_was_answered_ends_the_connection(start: Start) -> None:
    with connected(start()) as client:
        client.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n".encode() + b"\x16\x03\x01 too early")
        read_head(client)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(10) == b""


@pytest.mark.parametrize("early", [b"", b"early "], ids=["in turn", "before the answer"])
def test_other_hosts_get_a_tunnel_in_which_each_direction_ends_by_itself(start: Start, early: bytes) -> None:
    received = []

    def far(connection: socket.socket) -> None:
        connection.sendall(b"hello")
        while piece := connection.recv(65536):
            received.append(piece)
        connection.sendall(BIG)

    with serving(far) as port, connected(start()) as client:
        client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode() + early)
        assert read_head(client).startswith(b"HTTP/1.1 200 ")
        assert read_exactly(client, 5) == b"hello"
        client.sendall(BIG)
        client.shutdown(socket.SHUT_WR)
        assert read_exactly(client, len(BIG)) == BIG
        assert client.recv(1) == b""
    assert b"".join(received) == early + BIG


def test_tls_through_a_tunnel_is_between_its_ends(start: Start, tmp_path: Path) -> None:
    identity = certificate.ensure(tmp_path, now=datetime.datetime.now(datetime.timezone.utc))
    server = HttpServer(tell, tls=identity.context())
    server.open()
    proxies = {"https": f"http://127.0.0.1:{start().port}"}
    url = f"https://localhost:{server.port}/x"
    with requests.Session() as session:
        session.trust_env = False
        reply = session.get(url, proxies=proxies, verify=str(identity.ca_file), timeout=10)
        assert reply.text == f"GET localhost:{server.port} /x? True 0"
        with pytest.raises(requests.exceptions.SSLError):
            session.get(url.replace("localhost", "127.0.0.1"), proxies=proxies, timeout=10)
    server.close(0.0)


def test_a_reset_goes_through_a_tunnel_as_a_reset(start: Start) -> None:
    listener = start()
    begun, arrived, ended = threading.Event(), threading.Event(), threading.Event()

    def resets(connection: socket.socket) -> None:
        connection.sendall(b"half")
        assert begun.wait(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def is_reset(connection: socket.socket) -> None:
        assert read_exactly(connection, 4) == b"half"
        arrived.set()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        ended.set()

    with serving(resets, is_reset) as port:
        with through(listener, f"127.0.0.1:{port}") as client:
            assert read_exactly(client, 4) == b"half"
            begun.set()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with through(listener, f"127.0.0.1:{port}") as client:
            client.sendall(b"half")
            assert arrived.wait(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert ended.wait(10)


def test_a_tunnel_holds_no_more_than_a_buffer_for_a_far_end_that_does_not_read(start: Start) -> None:
    done = threading.Event()

    def far(connection: socket.socket) -> None:
        assert done.wait(10)

    with serving(far) as port, through(start(), f"127.0.0.1:{port}") as client:
        client.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 200_000_000:
                sent += client.send(BIG)
        assert sent < 50_000_000
        done.set()


def test_a_silent_tunnel_ends(start: Start) -> None:
    done = threading.Event()

    def far(connection: socket.socket) -> None:
        assert done.wait(10)

    # The client, too, must say what it wants within that time.
    with serving(far) as port, through(start(idle_seconds=1.0), f"127.0.0.1:{port}") as client:
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        done.set()


def test_where_nobody_listens_and_what_nobody_is_called_cannot_be_reached(start: Start) -> None:
    with nobody() as port, connected(start()) as client:
        for target in (f"127.0.0.1:{port}", f"{'a' * 70}.invalid:443"):
            client.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            status, words = answer(client)
            assert (status, b"cannot connect to" in words) == (502, True)


def test_closing_ends_idle_connections_tunnels_and_handshakes_at_once(start: Start, authority: ProxyAuthority) -> None:
    listener = start()
    arrived, done = threading.Event(), threading.Event()

    def far(connection: socket.socket) -> None:
        read_exactly(connection, 1)
        arrived.set()
        assert connection.recv(1) == b""
        done.set()

    with (
        serving(far) as port,
        secured(listener, authority) as idle,
        through(listener, f"127.0.0.1:{port}") as tunnel,
        through(listener, f"{HOST}:443") as shaking,
    ):
        idle.sendall(get(b"/"))
        assert answer(idle)[0] == 200
        tunnel.sendall(b"x")
        assert arrived.wait(10)
        began = time.monotonic()
        listener.close(0.2)
        # Not when they have been idle for long enough, which takes minutes.
        assert time.monotonic() - began < 20.0
        for client in (tunnel, shaking):
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        with contextlib.suppress(ssl.SSLError):
            assert idle.recv(1) == b""
        assert done.wait(10)


def test_a_request_at_hand_has_the_grace_period_to_end(start: Start, authority: ProxyAuthority) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(request: Request) -> Response:
        begun.set()
        assert go_on.wait(10)
        return tell(request)

    listener = start(slow)
    with secured(listener, authority) as client:
        client.sendall(get(b"/slow"))
        assert begun.wait(10)
        closing = threading.Thread(target=listener.close, args=(100.0,))
        closing.start()
        go_on.set()
        assert answer(client) == (200, b"GET storage.googleapis.com /slow? True 0")
        closing.join(30)
        assert not closing.is_alive()


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_client_that_goes_away_in_the_middle_of_a_body_sends_no_whole_one(
    start: Start, authority: ProxyAuthority, reset: bool
) -> None:
    seen = threading.Event()
    begun = threading.Event()

    def keep(request: Request) -> Response:
        assert request.body.read(5) == b"first"
        begun.set()
        try:
            request.body.read()
        except BodyTruncated:
            seen.set()
            raise
        return Response(status=200)

    with secured(start(keep), authority) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nHost: " + HOST.encode() + b"\r\nContent-Length: 9\r\n\r\nfirst")
        assert begun.wait(10)
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    assert seen.wait(10)
