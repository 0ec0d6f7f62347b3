"""Serve one connection: request, handler, response, repeat.

Invariants:

* Responses go out in request order, each after its request's body was read or given up.
* A connection ends with FIN after the peer could read the last response, unless the handler asks for a reset. Closing a
  socket with unread bytes makes the kernel send RST, and the peer would lose that response.
* A connection with an unknown position in the stream ends.
* A takeover learns of its connection's end by a shutdown of the socket, and is always closed.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from bastion.core.plain_text import plain
from bastion.net.http1.head import body_length, parse_head, split_target
from bastion.net.http1.incoming import ChunkedBody, Incoming, SizedBody, set_receive_timeout, timeval
from bastion.net.http1.messages import (
    PIECE_BYTES,
    BadRequest,
    Body,
    BodyTruncated,
    BytesBody,
    Disconnect,
    Headers,
    Request,
    Response,
)
from bastion.net.http1.outgoing import BodyFailed, Outgoing
from bastion.net.http1.takeover import Channel, Secured, Takeover

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]
Admit = Callable[[tuple[str, int], tuple[str, int]], bool]

# Up to this size the unread rest of a body is read, so that the connection can continue.
_DRAIN_MAX_BYTES = 1024 * 1024
# After the last response: how long the peer may keep sending, in total and between two pieces.
_LINGER_SECONDS = 10.0
_LINGER_SILENCE_SECONDS = 1.0
_RESET = struct.pack("@ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection; see `HttpServer`."""

    idle_seconds: float
    head_seconds: float
    head_max_bytes: int


class Connection:
    """Serves one accepted socket in the thread that calls `run`.

    `idle_since`: when it began to wait for a request or the peer's end (monotonic); None while busy.
    """

    def __init__(
        self,
        accepted: socket.socket,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None,
        admit: Admit | None,
        limits: ConnectionLimits,
    ) -> None:
        self._socket = accepted
        self._handler = handler
        self._tls = tls
        self._admit = admit
        self._limits = limits
        self._ending = False
        self._takeover: Takeover | None = None
        self._lingers = False
        self.idle_since: float | None = None

    def announce_end(self) -> None:
        """Mark the current response as the last; called by another thread."""
        self._ending = True

    def finish(self) -> None:
        """End after the current request; called by another thread.

        It still reads what the peer sends after its last response: to stop would cause a reset.
        """
        self._ending = True
        if self.idle_since is not None and not self._lingers:
            self._shut(socket.SHUT_RD)

    def make_way(self) -> None:
        """End after the current request, whatever the peer still sends; called by another thread."""
        self.finish()
        if self._lingers:
            self.abort()

    def abort(self) -> None:
        """End now; called by another thread."""
        self._ending = True
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            # Not SSLSocket's method, which would remove the TLS state under the serving thread.
            socket.socket.shutdown(self._socket, how)

    def run(self) -> None:
        try:
            if self._admit is None or self._admit(self._socket.getpeername(), self._socket.getsockname()):
                self._prepare()
                self._serve()
            elif not self._peer_has_left():
                peer = self._socket.getpeername()
                _log.warning("refused a connection from %s: its owner is another user, or unknown", peer)
        except Disconnect as disconnect:
            if disconnect.reset:
                with contextlib.suppress(OSError):
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except (OSError, BodyTruncated):
            # The peer has closed.
            pass
        finally:
            self._socket.close()

    def _peer_has_left(self) -> bool:
        """Whether the peer closed without sending a byte, like a port check.

        It was refused nothing: the kernel does not know the owner of a closed socket.
        """
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _prepare(self) -> None:
        seconds = self._limits.idle_seconds
        if self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._secure(self._tls)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(seconds))
            set_receive_timeout(self._socket, seconds)

    def _secure(self, context: ssl.SSLContext) -> None:
        self._socket.settimeout(self._limits.head_seconds)
        # Assign before the handshake: wrapping empties the old socket, and `abort` needs the new one.
        self._socket = secured = context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        secured.do_handshake()
        set_receive_timeout(secured, self._limits.idle_seconds)

    def _serve(self) -> None:
        incoming = Incoming(self._socket, idle_seconds=self._limits.idle_seconds)
        outgoing = Outgoing(self._socket)
        keep = True
        while keep:
            try:
                request = self._next_request(incoming, outgoing)
            except BadRequest as error:
                outgoing.send(_refusal(error), method="GET", version="HTTP/1.1", keep=False)
                break
            if request is None:
                break
            keep = self._serve_one(request, incoming, outgoing)
        takeover, self._takeover = self._takeover, None
        if takeover is None:
            self._linger()
        else:
            with contextlib.closing(takeover):
                self._hand_over(takeover, incoming.rest())

    def _begin_takeover(self, takeover: Takeover, response: Response, request: Request, outgoing: Outgoing) -> None:
        try:
            outgoing.send(response, method=request.method, version=request.version, keep=True)
        except BaseException:
            takeover.close()
            raise
        self._takeover = takeover

    def _hand_over(self, takeover: Takeover, unread: bytes) -> None:
        if self._ending:
            return
        if isinstance(takeover, Secured):
            if unread:
                # TLS bytes before our answer cannot go back into the socket; no client sends them.
                return
            self._handler, self._tls = takeover.handler, takeover.context
            self._secure(takeover.context)
            self._serve()
        else:
            self._touch()
            takeover.run(Channel(connection=self._socket, unread=unread, touch=self._touch))

    def _touch(self) -> None:
        self.idle_since = time.monotonic()

    def _next_request(self, incoming: Incoming, outgoing: Outgoing) -> Request | None:
        """The next request, if any."""
        self.idle_since = time.monotonic() if incoming.empty else None
        if self._ending:
            return None
        data = incoming.head(max_bytes=self._limits.head_max_bytes, seconds=self._limits.head_seconds)
        self.idle_since = None
        if data is None:
            return None
        head = parse_head(data)
        path, query, authority = split_target(head.target, head.headers.get("host"))
        length = body_length(head.headers)
        body: Body
        if length is None:
            body = ChunkedBody(incoming, trailers_max_bytes=self._limits.head_max_bytes)
        else:
            body = SizedBody(incoming, length) if length else BytesBody()
        expecting = head.headers.get("expect").lower() == "100-continue" and not body.finished
        # A client that already sends its body does not wait.
        incoming.before_waiting = outgoing.send_continue if expecting and incoming.empty else None
        return Request(
            method=head.method,
            target=head.target,
            path=path,
            query=query,
            headers=head.headers,
            body=body,
            authority=authority,
            secure=self._tls is not None,
            version=head.version,
        )

    def _serve_one(self, request: Request, incoming: Incoming, outgoing: Outgoing) -> bool:
        """Answer one request; return whether the connection can continue."""
        body = request.body
        response, sound = self._answer(request)
        # A client that waits for `100 Continue` may or may not send its body.
        waiting = incoming.before_waiting is not None
        incoming.before_waiting = None
        keep = sound and not self._ending and not waiting and _wants_more(request) and _can_drain(body)
        if response.takeover is not None:
            self._begin_takeover(response.takeover, response, request, outgoing)
            return False
        try:
            keep = outgoing.send(response, method=request.method, version=request.version, keep=keep)
        except BodyFailed as error:
            _log.exception("the answer to %s %s could not be sent", request.method, plain(request.path))
            if outgoing.begun:
                # Reset it: an end could look like the end of a body without a length.
                raise Disconnect(reset=True) from error
            outgoing.send(_failure(), method=request.method, version=request.version, keep=False)
            return False
        return keep and _drain(body)

    def _answer(self, request: Request) -> tuple[Response, bool]:
        """The handler's response, and whether the request was valid."""
        try:
            return self._handler(request), True
        except (Disconnect, BodyTruncated):
            raise
        except BadRequest as error:
            return _refusal(error), False
        except Exception:  # noqa: BLE001 - a bug in one request must not end the server
            _log.exception("%s %s failed", request.method, plain(request.path))
            return _failure(), True

    def _linger(self) -> None:
        """End our direction, then read until the peer ends its own."""
        self._lingers = True
        self.idle_since = time.monotonic()
        set_receive_timeout(self._socket, _LINGER_SILENCE_SECONDS)
        if isinstance(self._socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self._socket.unwrap()
        self._shut(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER_SECONDS
        # No need to decrypt what is dropped.
        while time.monotonic() < deadline and socket.socket.recv(self._socket, PIECE_BYTES):
            pass


def _wants_more(request: Request) -> bool:
    options = request.headers.get("connection").lower()
    return "keep-alive" in options if request.version == "HTTP/1.0" else "close" not in options


def _can_drain(body: Body) -> bool:
    """Whether the rest of the body is probably short."""
    return not isinstance(body, SizedBody) or body.missing <= _DRAIN_MAX_BYTES


def _drain(body: Body) -> bool:
    """Read the rest of a body; False if it is too long."""
    read = 0
    while not body.finished:
        try:
            read += len(body.receive(PIECE_BYTES))
        except BadRequest:
            return False
        if read > _DRAIN_MAX_BYTES:
            return False
    return True


def _refusal(error: BadRequest) -> Response:
    return Response(status=error.status, headers=Headers([("Content-Type", "text/plain")]), body=f"{error}\n".encode())


def _failure() -> Response:
    return Response(
        status=500, headers=Headers([("Content-Type", "text/plain")]), body=b"internal error; see the server's log\n"
    )
