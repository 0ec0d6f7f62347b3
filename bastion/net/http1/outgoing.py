"""The sending side of a connection: status line, headers and one of three types of bodies.

A small response takes one system call. A file goes from the kernel to the socket, except over TLS. The body's
descriptor or iterator is always closed.
"""

from __future__ import annotations

import contextlib
import http
import os
import select
import socket
import ssl
import time
from collections.abc import Iterable, Iterator

from bastion.net.http1.messages import PIECE_BYTES, BodyTruncated, Disconnect, FileSlice, Response

# Up to this size copying is cheaper than another system call.
_SMALL_BYTES = 64 * 1024
_REASONS = {status.value: status.phrase for status in http.HTTPStatus}
_LINE_BREAKS = str.maketrans("\r\n", "  ")
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_date = (0, "")


def _now_as_header() -> str:
    """The Date header's value, cached for a second."""
    global _date
    second = int(time.time())
    if _date[0] != second:
        _date = (second, time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(second)))
    return _date[1]


class BodyFailed(Exception):
    """The response is invalid: its iterator raised, its file cannot be read, or its lengths contradict each other."""


class Outgoing:
    """The sending side of a connection. Methods raise OSError if the peer has left, or accepts nothing for too long.

    `begun`: a byte of the current response may be out, so it cannot be replaced.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._plain = not isinstance(connection, ssl.SSLSocket)
        self.begun = False

    def send_continue(self) -> None:
        self._connection.sendall(CONTINUE)

    def send(self, response: Response, *, method: str, version: str, keep: bool) -> bool:
        """Send a response and close its body; return whether another response can follow.

        `method` and `version` are the request's; `keep`: the connection can stay open.

        Raises:
            BodyFailed: The handler's fault, before or (`begun`) after something was sent.
            Disconnect: From the body's iterator.
        """
        self.begun = False
        with contextlib.closing(response):
            body = response.body
            bodiless = method == "HEAD" or response.status in (204, 304) or response.takeover is not None
            length = _length(response)
            chunked = length is None and not bodiless and version == "HTTP/1.1"
            keep = keep and (length is not None or chunked or bodiless)
            keep = keep and "close" not in response.headers.get("connection").lower()
            head = _head(response, length=length, chunked=chunked, keep=keep, version=version)
            if bodiless:
                self._send(head)
            elif isinstance(body, bytes):
                if len(body) != length:
                    raise BodyFailed(f"the body has {len(body)} bytes; its Content-Length says {length}")
                self._send(head, body)
            elif isinstance(body, FileSlice):
                self._send_file(head, body)
            elif chunked:
                self._send_chunks(head, _guarded(body))
            else:
                self._send_pieces(head, _guarded(body), length)
            return keep

    def _send(self, *parts: bytes) -> None:
        """Send all parts, in one system call if possible."""
        self.begun = True
        if self._plain:
            total = sum(map(len, parts))
            sent = self._connection.sendmsg(parts)
            if sent < total:
                self._connection.sendall(memoryview(b"".join(parts))[sent:])
        elif sum(map(len, parts)) <= _SMALL_BYTES:
            self._connection.sendall(b"".join(parts))
        else:
            for part in parts:
                self._connection.sendall(part)

    def _send_chunks(self, head: bytes, pieces: Iterator[bytes]) -> None:
        """Send the head with the first piece, so that an iterator that fails at once becomes a proper 500.

        An empty piece means that there is nothing to send yet: the head goes out, and a peer that has left is noticed.
        """
        for piece in pieces:
            if piece:
                self._send(head, b"%x\r\n" % len(piece), piece, b"\r\n")
                head = b""
            elif head:
                self._send(head)
                head = b""
            elif self._peer_has_left():
                raise ConnectionResetError("the peer has left")
        self._send(head, b"0\r\n\r\n")

    def _peer_has_left(self) -> bool:
        """Whether the peer has closed, also with unread bytes before its end, such as a TLS alert."""
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _send_pieces(self, head: bytes, pieces: Iterator[bytes], length: int | None) -> None:
        """Like `_send_chunks`; without a length the connection's end ends the body."""
        sent = 0
        for piece in pieces:
            sent += len(piece)
            if length is not None and sent > length:
                raise BodyFailed(f"the body is longer than its Content-Length of {length} bytes")
            self._send(head, piece)
            head = b""
        if length is not None and sent < length:
            raise BodyFailed(f"the body ended after {sent} of {length} bytes")
        if head:
            self._send(head)

    def _send_file(self, head: bytes, piece: FileSlice) -> None:
        start, left = piece.start, piece.length
        if left <= _SMALL_BYTES:
            self._send(head, _read(piece, start, left))
            return
        self.begun = True
        self._connection.sendall(head, socket.MSG_MORE if self._plain else 0)
        while left:
            if self._plain:
                sent = os.sendfile(self._connection.fileno(), piece.descriptor, start, left)
            else:
                data = _read(piece, start, min(left, PIECE_BYTES))
                self._connection.sendall(data)
                sent = len(data)
            if not sent:
                raise BodyFailed(f"the file ends {left} bytes before the announced end")
            start += sent
            left -= sent


def _guarded(body: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces; wrap their errors to tell them from errors of the connection."""
    try:
        yield from body
    except (Disconnect, BodyTruncated):
        raise
    except Exception as error:
        raise BodyFailed(f"the body's iterator failed: {error!r}") from error


def _read(piece: FileSlice, start: int, length: int) -> bytes:
    try:
        data = os.pread(piece.descriptor, length, start)
    except OSError as error:
        raise BodyFailed(f"the file cannot be read: {error}") from error
    if len(data) < length:
        raise BodyFailed(f"the file ends {length - len(data)} bytes before the announced end")
    return data


def _length(response: Response) -> int | None:
    try:
        return response.length
    except ValueError as error:
        raise BodyFailed(f"the Content-Length is not a valid length: {error}") from error


def _head(response: Response, *, length: int | None, chunked: bool, keep: bool, version: str) -> bytes:
    reason = response.reason or _REASONS.get(response.status, "")
    lines = [f"HTTP/1.1 {response.status} {reason}", f"Date: {_now_as_header()}"]
    for name, value in response.headers.items():
        if name.lower() not in ("content-length", "connection", "transfer-encoding"):
            lines.append(f"{name}: {value}")
    if length is not None and response.status not in (204, 304) and response.takeover is None:
        lines.append(f"Content-Length: {length}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    if not keep:
        lines.append("Connection: close")
    elif version == "HTTP/1.0":
        lines.append("Connection: keep-alive")
    # With a line break in a value, an object's metadata could add headers.
    text = "\r\n".join(lines)
    if text.count("\n") + text.count("\r") != 2 * (len(lines) - 1):
        text = "\r\n".join([line.translate(_LINE_BREAKS) for line in lines])
    return f"{text}\r\n\r\n".encode("latin-1", "replace")
