"""One connection from its first byte to its last: request, handler, response, and again.

Layer: http1. Invariants:

* Responses go out in the order of the requests, each after its request's body was read or given up.
* A connection ends with FIN, after the peer had time to read the last response, unless the handler asked for a reset:
  closing a socket with unread bytes in it would make the kernel send RST, and the peer would lose that response.
* After anything that leaves the position in the stream unknown the connection ends.
* What takes a connection over is told when it ends, by a shutdown of the socket, and closed in any case.
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

# What a handler left unread of a body is read for it up to here, so that the connection can go on.
_DRAIN_MAX_BYTES = 1024 * 1024
# After the last response: how long the peer may go on sending, in all and between two pieces.
_LINGER_SECONDS = 10.0
_LINGER_SILENCE_SECONDS = 1.0
_RESET = struct.pack("@ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may take; see `HttpServer`."""

    idle_seconds: float
    head_seconds: float
    head_max_bytes: int


class Connection:
    """Serves one accepted socket in the thread that calls `run`.

    Attributes:
        idle_since: When it began to wait for a request, or for the peer's end, on the monotonic clock; None while it
            is busy.
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
        """The response to the request at hand says that it is the last; called by another thread."""
        self._ending = True

    def finish(self) -> None:
        """Ends it after the request at hand; called by another thread.

        A peer that has its last response and still sends may go on: to read no more of it would be a reset.
        """
        self._ending = True
        if self.idle_since is not None and not self._lingers:
            self._shut(socket.SHUT_RD)

    def make_way(self) -> None:
        """Ends it after the request at hand, whatever its peer still sends; called by another thread."""
        self.finish()
        if self._lingers:
            self.abort()

    def abort(self) -> None:
        """Ends it now; called by another thread."""
        self._ending = True
        self._shut(socket.SHUT_RDWR)

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):
            # Not the method of SSLSocket: that one would pull the TLS state from under the serving thread.
            socket.socket.shutdown(self._socket, how)

    def run(self) -> None:
        """Serves until either side ends."""
        try:
            if self._admit is None or self._admit(self._socket.getpeername(), self._socket.getsockname()):
                self._prepare()
                self._serve()
            elif not self._peer_has_left():
                peer = self._socket.getpeername()
                _log.warning("refused a connection from %s: another user's, or it cannot be told whose", peer)
        except Disconnect as disconnect:
            if disconnect.reset:
                with contextlib.suppress(OSError):
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except (OSError, BodyTruncated):
            # The peer is gone; there is nobody to tell.
            pass
        finally:
            self._socket.close()

    def _peer_has_left(self) -> bool:
        """Whether the peer closed its side without a byte, as a check whether a port is open does.

        Nobody was refused anything then, and of a closed socket the kernel does not tell whose it was.
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
        # The handshake comes after the assignment: wrapping empties the old socket, and `abort` must find the new one.
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
                # TLS that began before its answer: it cannot be put back into the socket, and no client does so.
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
        """The next request; None: there is none."""
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
        # A client whose body is on its way already asks for nothing.
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
        """Answers; returns whether the connection can go on."""
        body = request.body
        response, sound = self._answer(request)
        # A client that still waits for `100 Continue` will send its body, or not: nobody can know.
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
                # A reset, because an end could pass for the end of a body without a length.
                raise Disconnect(reset=True) from error
            outgoing.send(_failure(), method=request.method, version=request.version, keep=False)
            return False
        return keep and _drain(body)

    def _answer(self, request: Request) -> tuple[Response, bool]:
        """The handler's response, and whether the request was sound."""
        try:
            return self._handler(request), True
        except (Disconnect, BodyTruncated):
            raise
        except BadRequest as error:
            return _refusal(error), False
        except Exception:  # noqa: BLE001 - one request that hits a mistake of ours must not end the server for all
            _log.exception("%s %s failed", request.method, plain(request.path))
            return _failure(), True

    def _linger(self) -> None:
        """Ends our direction, then reads what the peer still sends until it ends its own."""
        self._lingers = True
        self.idle_since = time.monotonic()
        set_receive_timeout(self._socket, _LINGER_SILENCE_SECONDS)
        if isinstance(self._socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self._socket.unwrap()
        self._shut(socket.SHUT_WR)
        deadline = time.monotonic() + _LINGER_SECONDS
        # What is still encrypted need not be decrypted: it is thrown away.
        while time.monotonic() < deadline and socket.socket.recv(self._socket, PIECE_BYTES):
            pass


def _wants_more(request: Request) -> bool:
    options = request.headers.get("connection").lower()
    return "keep-alive" in options if request.version == "HTTP/1.0" else "close" not in options


def _can_drain(body: Body) -> bool:
    """Whether it is likely that the rest of the body is short."""
    return not isinstance(body, SizedBody) or body.missing <= _DRAIN_MAX_BYTES


def _drain(body: Body) -> bool:
    """Reads the rest of a body; False if there is too much of it."""
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
        status=500, headers=Headers([("Content-Type", "text/plain")]), body=b"the server failed; its log says how\n"
    )
