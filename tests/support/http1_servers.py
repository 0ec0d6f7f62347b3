"""HTTP servers for a test, and a client that speaks to them byte by byte."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest

from bastion.net.http1 import Headers, HttpServer, Request, Response
from bastion.net.http1.server import Handler
from tests.support.scripted_server import server_threads
from tests.support.waiting import until

Start = Callable[..., HttpServer]


def echo(request: Request) -> Response:
    """Says what came."""
    body = request.body.read()
    words = f"{request.method} {request.path} {request.query} {len(body)} "
    return Response(status=200, body=words.encode() + body[:100])


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers; each must be able to end at once, whatever a test did to it."""
    before = set(server_threads())
    with contextlib.ExitStack() as ending:

        def begin(handler: Handler = echo, **settings: object) -> HttpServer:
            server = HttpServer(handler, **settings)  # type: ignore[arg-type]
            server.open()
            ending.callback(server.close, 0.0)
            return server

        yield begin
    # A server counts a thread as ended in the thread's last steps.
    until(lambda: set(server_threads()) <= before)


class Client:
    """A raw connection."""

    def __init__(self, server: HttpServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self._stream = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, bodiless: bool = False) -> tuple[int, Headers, bytes]:
        """The next response; reads exactly as much as it announces."""
        status = int(self._stream.readline().split()[1])
        headers = Headers()
        while line := self._stream.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers.add(name, value.strip())
        if bodiless or status < 200:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._stream.readline(), 16):
                body += self._stream.read(size)
                self._stream.readline()
            self._stream.readline()
            return status, headers, body
        if "content-length" in headers:
            return status, headers, self._stream.read(int(headers.get("content-length")))
        return status, headers, self.rest()

    def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        return self._stream.read()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self.socket.close()
