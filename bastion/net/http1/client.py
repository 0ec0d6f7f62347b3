"""The HTTP/1.1 client: one connection to a server, one request at a time.

Invariants:

* An incomplete request never looks complete: the connection is closed instead.
* A body that breaks off is an error. The connection is reused only after both bodies were read to the end.
* A success before the whole body was sent is an error.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from bastion.core.errors import BastionError
from bastion.net.http1 import BadRequest, Body, BodyTruncated, BytesBody, Headers
from bastion.net.http1.head import FIELD_NAME, HOP_BY_HOP, AnswerHead, body_length, parse_answer
from bastion.net.http1.incoming import ChunkedBody, Incoming, SizedBody, set_receive_timeout, timeval

# Up to this size head and body are sent together; larger bodies go in pieces of it, with a check for an early answer
# between two.
_SMALL_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024
# How long a call waits to send before it checks again for an early answer.
_LOOK_SECONDS = 0.25
_HEAD_MAX_BYTES = 64 * 1024
_HEAD_SECONDS = 30.0
# Up to this size the unread rest of an answer is read, to keep the connection.
_DRAIN_MAX_BYTES = 64 * 1024
# For some readers a `#` ends the path; here it is part of it.
_NOT_IN_A_TARGET = re.compile(r"[^\x21-\x7e]|#")
_LINE_ENDS = re.compile(r"[\r\n\x00]")

_Done = Callable[["Exchange", bool], None]


class NoAnswer(BastionError):
    """There was no complete answer; what was sent may have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to a server.

    Attributes:
        target: `/path?query`, percent-encoded.
        authority: Host and optional port, as in the Host header.
        headers: Senders replace the fields of one connection (Host, Content-Length, Connection, ...).
        body: Bytes, or an iterable of pieces that the asking thread consumes once. Each piece is sent before the next
            is taken, so they may share memory.
        length: Of an iterable, in bytes; None: unknown, sent in chunks.
    """

    method: str
    target: str
    authority: str
    headers: Headers = field(default_factory=Headers)
    body: bytes | Iterable[bytes | memoryview] = b""
    length: int | None = None


class HttpAnswer:
    """An incoming answer; must be closed. One thread reads its body in order.

    Both reading methods raise `NoAnswer` if the body breaks off.
    """

    def __init__(self, head: AnswerHead, body: Body, where: str, done: Callable[[bool], None]) -> None:
        self.status = head.status
        self.reason = head.reason
        self.headers = head.headers
        self._body = body
        self._where = where
        self._done: Callable[[bool], None] | None = done
        if body.finished:
            self._end(sound=True)

    @property
    def length(self) -> int | None:
        return self._body.length

    def read(self, size: int = -1) -> bytes:
        with self._reading():
            return self._body.read(size)

    def readinto(self, view: memoryview, /) -> int:
        with self._reading():
            return self._body.readinto(view)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (BodyTruncated, BadRequest) as error:
            self._end(sound=False)
            raise NoAnswer(f"the answer of {self._where} broke off; try again") from error
        except BaseException:
            self._end(sound=False)
            raise
        if self._body.finished:
            self._end(sound=True)

    def close(self) -> None:
        if self._done is None:
            return
        if isinstance(self._body, SizedBody) and self._body.missing <= _DRAIN_MAX_BYTES:
            with contextlib.suppress(NoAnswer):
                self.read()
        self._end(sound=False)

    def _end(self, *, sound: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(sound)


class Exchange:
    """An open connection, TLS or plain. `answered`: whether a byte of the current answer has arrived.

    Args:
        where: The other side's name in errors.
        silence_seconds: The maximum wait for an answer, between its bytes, or to send.
    """

    def __init__(self, connection: socket.socket, *, where: str, silence_seconds: float) -> None:
        self._socket = connection
        self._where = where
        self._silence_seconds = silence_seconds
        self._incoming = Incoming(connection, idle_seconds=silence_seconds)
        self._arrivals = select.poll()
        self._arrivals.register(connection, select.POLLIN)
        if not isinstance(connection, ssl.SSLSocket):
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(_LOOK_SECONDS))
        self._early: AnswerHead | None = None
        self.answered = False

    @property
    def usable(self) -> bool:
        """Whether it looks alive: unasked data is most likely the server's last answer before it closes."""
        return self._incoming.empty and not self._arrivals.poll(0)

    def close(self) -> None:
        self._socket.close()

    def ask(self, asked: Asked, done: _Done) -> HttpAnswer:
        """Send a request, close its body's iterator, and wait for the head of the answer.

        Calls `done` once, when the answer was read or given up: whether the connection can be reused. Raises NoAnswer
        and closes the connection if there is no answer.
        """
        self.answered = False
        self._early = None
        try:
            # TLS has one timeout for both directions.
            set_receive_timeout(self._socket, _LOOK_SECONDS)
            whole = self._send(asked)
            set_receive_timeout(self._socket, self._silence_seconds)
            head = self._early or self._await_head()
            if not whole and head.status < 300:
                raise NoAnswer(f"{self._where} answered {head.status} before it had the whole request; try again")
            body = self._body(asked, head)
        except BaseException:
            self.close()
            raise
        keep = whole and head.version == "HTTP/1.1" and "close" not in head.headers.get("connection").lower()
        return HttpAnswer(head, body, self._where, lambda sound: done(self, sound and keep))

    def _send(self, asked: Asked) -> bool:
        """Send a request; False if an answer came, or may have come, before its end."""
        body = asked.body
        if isinstance(body, (bytes, bytearray, memoryview)):
            head = _head(asked, len(body))
            if len(body) <= _SMALL_BYTES:
                return self._out(head + body)
            view = memoryview(body)
            pieces = (view[at : at + _PIECE_BYTES] for at in range(0, len(view), _PIECE_BYTES))
            return self._out(head) and self._send_pieces(pieces, len(body))
        try:
            return self._out(_head(asked, asked.length)) and self._send_pieces(body, asked.length)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()

    def _send_pieces(self, pieces: Iterable[bytes | memoryview], length: int | None) -> bool:
        sent = looked = 0
        for piece in pieces:
            # Small pieces are numerous, and each check costs a system call.
            if sent - looked >= _PIECE_BYTES or not sent:
                looked = sent
                if self._answers_early():
                    return False
            if not piece:
                continue
            sent += len(piece)
            if length is not None and sent > length:
                raise ValueError(f"the body is longer than the announced {length} bytes")
            parts = [piece] if length is not None else [b"%x\r\n" % len(piece), piece, b"\r\n"]
            if len(piece) <= _SMALL_BYTES:
                parts = [b"".join(parts)]
            if not all(self._out(part) for part in parts):
                return False
        if length is None:
            return self._out(b"0\r\n\r\n")
        if sent < length:
            raise ValueError(f"the body ended after {sent} of {length} bytes")
        return True

    def _out(self, data: bytes | memoryview) -> bool:
        """Send; False if an answer came instead. Raises NoAnswer."""
        left = memoryview(data)
        patience = self._silence_seconds
        try:
            while left:
                sent = self._send_some(left)
                left = left[sent:]
                patience = self._silence_seconds if sent else patience - _LOOK_SECONDS
                # A server that refuses a request may stop reading, and wait for us to read.
                if not sent and self._answers_early():
                    return False
                if patience <= 0:
                    raise TimeoutError("timed out")
        except OSError as error:
            # Or it closes the connection; its answer may still be readable.
            if self._answers_early():
                return False
            raise NoAnswer(f"{self._where} does not accept the request ({error}); try again") from error
        return True

    def _send_some(self, data: memoryview) -> int:
        """Send what is accepted without waiting; return the number of bytes."""
        try:
            return self._socket.send(data)
        except (TimeoutError, BlockingIOError):
            return 0

    def _answers_early(self) -> bool:
        """Whether the answer, or the end of the connection, has arrived."""
        while not self._incoming.empty or self._arrivals.poll(0):
            if not self._incoming.gather():
                return False
            head = self._next_head()
            if head.status >= 200:
                self._early = head
                return True
        return False

    def _await_head(self) -> AnswerHead:
        head = self._next_head()
        while head.status < 200:
            head = self._next_head()
        return head

    def _next_head(self) -> AnswerHead:
        try:
            data = self._incoming.head(max_bytes=_HEAD_MAX_BYTES, seconds=_HEAD_SECONDS)
            if data is None:
                raise NoAnswer(f"{self._where} did not answer; try again")
            self.answered = True
            return parse_answer(data)
        except BadRequest as error:
            self.answered = True
            raise NoAnswer(f"{self._where} did not answer in HTTP/1.1: {error}") from error

    def _body(self, asked: Asked, head: AnswerHead) -> Body:
        if asked.method == "HEAD" or head.status in (204, 304):
            return BytesBody()
        try:
            length = body_length(head.headers)
        except BadRequest as error:
            raise NoAnswer(f"{self._where} answered with a body of no known length: {error}") from error
        if length is None:
            return ChunkedBody(self._incoming, trailers_max_bytes=_HEAD_MAX_BYTES)
        if "content-length" not in head.headers:
            # Its end would look like a broken connection.
            raise NoAnswer(f"{self._where} answered with a body of no known length")
        return SizedBody(self._incoming, length) if length else BytesBody()


def _head(asked: Asked, length: int | None) -> bytes:
    """The request's head. Raises ValueError for a field that would change the request."""
    target = _NOT_IN_A_TARGET.sub(lambda found: f"%{ord(found[0]):02X}", asked.target)
    lines = [f"{asked.method} {target} HTTP/1.1", f"Host: {asked.authority}"]
    # Fields that Connection names also belong to one connection.
    named = {name.strip().lower() for value in asked.headers.get_all("connection") for name in value.split(",")}
    for name, value in asked.headers.items():
        if name.lower() not in HOP_BY_HOP and name.lower() not in named:
            if not FIELD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid header field name")
            lines.append(f"{name}: {value}")
    if length is None:
        lines.append("Transfer-Encoding: chunked")
    elif length or asked.method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
        lines.append(f"Content-Length: {length}")
    if any(_LINE_ENDS.search(line) for line in lines):
        raise ValueError("a header field contains a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
