"""A server that does on each connection what a test says, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

Script = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(*scripts: Script, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Runs the scripts, one per connection in the order of their coming, and yields the port.

    Each connection ends after its script. A script that raises fails the test at the end; one that is still waiting
    then sees its connection end.
    """
    connections: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        for script in scripts:
            connection, _ = listener.accept()
            connection.settimeout(10)
            # Else a connection's end could overtake what was sent before.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = tls.wrap_socket(connection, server_side=True)
            with connection:
                connections.append(connection)
                script(connection)

    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(run)
        cut = False
        try:
            yield listener.getsockname()[1]
            cut = bool(wait([ran], timeout=1.0).not_done)
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
            wait([ran], timeout=5.0)
            listener.close()
    if not cut:
        ran.result()


@contextlib.contextmanager
def nobody() -> Iterator[int]:
    """A port of this machine at which nobody listens, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def server_threads() -> list[threading.Thread]:
    """Those of all servers in this process: some serve many tests."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("http-")]


def read_head(connection: socket.socket) -> bytes:
    """A head and not a byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    return head


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
        data += piece
    return data


def answering(*answers: bytes) -> Script:
    """Answers one request without a body after the other."""

    def script(connection: socket.socket) -> None:
        for answer in answers:
            read_head(connection)
            connection.sendall(answer)

    return script
