"""The receiving side of a connection: heads and bodies.

Bytes read ahead stay in the buffer for the next request, so clients may pipeline. If the peer has closed, fails, or is
silent for too long, nothing more comes.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable

from bastion.net.http1.head import chunk_length, end_of_head
from bastion.net.http1.messages import PIECE_BYTES, BadRequest, Body, BodyTruncated

_RECEIVE_BYTES = 64 * 1024
# What one TLS read can return; a larger buffer has no use.
_RECORD_BYTES = 16 * 1024
# From this size the reader's memory is filled directly; below, reading ahead saves system calls.
_DIRECT_BYTES = 4 * 1024
_LINE_MAX_BYTES = 1024


class Incoming:
    """The receiving side of a connection.

    Args:
        idle_seconds: How long the peer may be silent between requests or within a body.

    Attributes:
        before_waiting: Called once, before the next wait for the peer; sends `100 Continue`.
    """

    def __init__(self, connection: socket.socket, *, idle_seconds: float) -> None:
        self._connection = connection
        self._idle_seconds = idle_seconds
        self._piece_bytes = _RECORD_BYTES if isinstance(connection, ssl.SSLSocket) else PIECE_BYTES
        self._data = b""
        self._at = 0
        self.before_waiting: Callable[[], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether all received bytes were read."""
        return self._at == len(self._data)

    def head(self, *, max_bytes: int, seconds: float) -> bytes | None:
        """The next head with its empty line; None if nothing more comes.

        Raises BadRequest if it is longer than `max_bytes` (431), or takes longer than `seconds` from first to last byte
        (408): a slow client must not hold a thread.
        """
        deadline = 0.0
        while True:
            # Ignore empty lines before a request: old clients send one after a body.
            while self._at < len(self._data) and self._data[self._at] in b"\r\n":
                self._at += 1
            end = -1 if self.empty else end_of_head(self._data, self._at)
            if (end if end >= 0 else len(self._data)) - self._at > max_bytes:
                raise BadRequest(f"the head is longer than {max_bytes} bytes", status=431)
            if end >= 0:
                head = self._data[self._at : end]
                self._at = end
                if deadline:
                    set_receive_timeout(self._connection, self._idle_seconds)
                return head
            if not self.empty:
                now = time.monotonic()
                deadline = deadline or now + seconds
                set_receive_timeout(self._connection, max(deadline - now, 0.001))
            if not self._fill():
                if deadline and time.monotonic() >= deadline:
                    raise BadRequest(f"the head was not complete within {seconds:g} s", status=408)
                return None

    def rest(self) -> bytes:
        """Return all unread bytes, and forget them."""
        rest, self._data, self._at = self._data[self._at :], b"", 0
        return rest

    def take(self, max_bytes: int) -> bytes:
        """The next 1 to `max_bytes` bytes; empty if nothing more comes."""
        if self.empty:
            if max_bytes >= self._piece_bytes:
                return self._receive(self._piece_bytes)
            if not self._fill():
                return b""
        piece = self._data[self._at : self._at + max_bytes]
        self._at += len(piece)
        return piece

    def take_into(self, view: memoryview) -> int:
        """Read the available bytes into a view; 0 if nothing more comes."""
        if self.empty:
            if len(view) >= _DIRECT_BYTES:
                try:
                    self._before_waiting()
                    return self._connection.recv_into(view)
                except OSError:
                    return 0
            if not self._fill():
                return 0
        count = min(len(view), len(self._data) - self._at)
        view[:count] = self._data[self._at : self._at + count]
        self._at += count
        return count

    def fill(self, view: memoryview) -> int:
        """Fill a view, with fewer bytes only at the end; return how many.

        A tight loop, because TLS returns 16 KiB at a time: Python work between two reads delays all connections.
        """
        wanted, filled = len(view), 0
        if not self.empty:
            filled = min(wanted, len(self._data) - self._at)
            view[:filled] = self._data[self._at : self._at + filled]
            self._at += filled
        connection = self._connection
        try:
            if filled < wanted:
                self._before_waiting()
            while filled < wanted:
                if isinstance(connection, ssl.SSLSocket):
                    # What TLS's `recv_into` calls: fewer Python calls between two records delay others less.
                    count: int = connection.read(wanted - filled, view[filled:])  # type: ignore[assignment]
                else:
                    count = connection.recv_into(view[filled:])
                if not count:
                    break
                filled += count
        except OSError:
            # Reset, timed out, or not TLS.
            pass
        return filled

    def gather(self) -> bool:
        """Receive without waiting; return whether there is something to read, or the end."""
        if not self.empty:
            return True
        before = self._connection.gettimeout()
        self._connection.settimeout(0.0)
        try:
            self._data, self._at = self._connection.recv(min(self._piece_bytes, _RECEIVE_BYTES)), 0
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            # TLS may have received something other than data.
            return False
        except OSError:
            return True
        finally:
            self._connection.settimeout(before)
        return True

    def line(self) -> bytes:
        """The next line with its end. Raises BadRequest if too long, BodyTruncated at the end."""
        while True:
            end = self._data.find(b"\n", self._at) + 1
            if (end or len(self._data)) - self._at > _LINE_MAX_BYTES:
                raise BadRequest(f"a line among the chunks is longer than {_LINE_MAX_BYTES} bytes")
            if end:
                line = self._data[self._at : end]
                self._at = end
                return line
            if not self._fill():
                raise BodyTruncated

    def _fill(self) -> bool:
        """Wait for more; False if nothing more comes."""
        piece = self._receive(min(self._piece_bytes, _RECEIVE_BYTES))
        self._data = self._data[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _receive(self, max_bytes: int) -> bytes:
        try:
            self._before_waiting()
            return self._connection.recv(max_bytes)
        except OSError:
            # Reset, timed out, or not TLS.
            return b""

    def _before_waiting(self) -> None:
        if self.before_waiting is not None:
            before, self.before_waiting = self.before_waiting, None
            before()


def set_receive_timeout(connection: socket.socket, seconds: float) -> None:
    """Set how long a receive waits.

    Python's timeout polls before each call; the kernel's does not, but TLS ignores it.
    """
    if isinstance(connection, ssl.SSLSocket):
        connection.settimeout(seconds)
    else:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))


def timeval(seconds: float) -> bytes:
    """A duration for socket options; never zero, which means forever."""
    micros = max(1, round(seconds * 1_000_000))
    return struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)


class SizedBody(Body):
    def __init__(self, incoming: Incoming, length: int) -> None:
        super().__init__(length)
        self._incoming = incoming
        self.missing = length

    @property
    def finished(self) -> bool:
        return self.missing == 0

    def receive(self, max_bytes: int) -> bytes:
        if not self.missing:
            return b""
        piece = self._incoming.take(min(max_bytes, self.missing))
        if not piece:
            raise BodyTruncated
        self.missing -= len(piece)
        return piece

    def receive_into(self, view: memoryview) -> int:
        if not self.missing or not view:
            return 0
        count = self._incoming.take_into(view[: self.missing])
        if not count:
            raise BodyTruncated
        self.missing -= count
        return count

    def readinto(self, view: memoryview) -> int:
        wanted = view if len(view) <= self.missing else view[: self.missing]
        filled = self._incoming.fill(wanted)
        self.missing -= filled
        if filled < len(wanted):
            raise BodyTruncated
        return filled


class ChunkedBody(Body):
    """A chunked body; extensions and trailers are ignored."""

    def __init__(self, incoming: Incoming, *, trailers_max_bytes: int) -> None:
        super().__init__(None)
        self._incoming = incoming
        self._trailers_max_bytes = trailers_max_bytes
        self._chunk_missing = 0
        self._within = False
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def receive(self, max_bytes: int) -> bytes:
        if not self._chunk_missing and not self._finished:
            self._next_chunk()
        if self._finished:
            return b""
        piece = self._incoming.take(min(max_bytes, self._chunk_missing))
        if not piece:
            raise BodyTruncated
        self._chunk_missing -= len(piece)
        return piece

    def receive_into(self, view: memoryview) -> int:
        if not self._chunk_missing and not self._finished and view:
            self._next_chunk()
        if self._finished or not view:
            return 0
        count = self._incoming.take_into(view[: self._chunk_missing])
        if not count:
            raise BodyTruncated
        self._chunk_missing -= count
        return count

    def _next_chunk(self) -> None:
        if self._within and self._incoming.line().strip(b"\r\n"):
            raise BadRequest("a chunk is longer than its size says")
        self._within = True
        self._chunk_missing = chunk_length(self._incoming.line())
        if self._chunk_missing:
            return
        left = self._trailers_max_bytes
        while trailer := self._incoming.line().strip(b"\r\n"):
            left -= len(trailer)
            if left < 0:
                raise BadRequest(f"the trailers are longer than {self._trailers_max_bytes} bytes", status=431)
        self._finished = True
