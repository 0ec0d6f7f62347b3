"""Requests, responses, headers and bodies of handlers.

No I/O except `FileSlice.close`. Header values have one character per byte (Latin-1), so that any byte survives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bastion.net.http1.takeover import Takeover

PIECE_BYTES = 256 * 1024


class BadRequest(Exception):
    """The client broke the protocol. The server answers `status`, then ends the connection."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class BodyTruncated(Exception):
    """The peer left, or was silent for too long, in the middle of a body; nobody waits for an answer."""


class Disconnect(Exception):
    """Raised by a handler or a response's body: drop the connection now, with RST (`reset`) or FIN."""

    def __init__(self, *, reset: bool = False) -> None:
        super().__init__("reset" if reset else "dropped")
        self.reset = reset


class Headers:
    """Header fields in order; names ignore case and may repeat."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items = list(items)

    def get(self, name: str, default: str = "") -> str:
        wanted = name.lower()
        for present, value in self._items:
            if present.lower() == wanted:
                return value
        return default

    def get_all(self, name: str) -> list[str]:
        wanted = name.lower()
        return [value for present, value in self._items if present.lower() == wanted]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(present.lower() == name.lower() for present, _ in self._items)

    def add(self, name: str, value: str) -> None:
        """Add a field, also if the name exists."""
        self._items.append((name, value))

    def set(self, name: str, value: str) -> None:
        """Replace all fields of that name."""
        self.remove(name)
        self._items.append((name, value))

    def remove(self, name: str) -> None:
        wanted = name.lower()
        self._items = [item for item in self._items if item[0].lower() != wanted]

    def items(self) -> list[tuple[str, str]]:
        """Names as written, and values."""
        return list(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Headers({self._items!r})"


class Body:
    """The bytes of a request's body, once, in order. `length` of the whole; None if chunked.

    All reading methods raise BodyTruncated if the peer left or was silent for too long, and BadRequest for invalid
    chunks, which the server answers.
    """

    def __init__(self, length: int | None) -> None:
        self.length = length

    @property
    def finished(self) -> bool:
        """Whether the last byte has been read; always true for an empty body."""
        raise NotImplementedError

    def receive(self, max_bytes: int) -> bytes:
        """The next 1 to `max_bytes` bytes as soon as there are any; empty only at the end."""
        raise NotImplementedError

    def receive_into(self, view: memoryview) -> int:
        """Read the next bytes into a view as soon as there are any; 0 only at the end."""
        piece = self.receive(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def readinto(self, view: memoryview) -> int:
        """Fill the view, with fewer bytes only at the end; return how many. The fastest way for large bodies."""
        filled = 0
        while filled < len(view):
            count = self.receive_into(view[filled:])
            if not count:
                break
            filled += count
        return filled

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end; by default all."""
        pieces = []
        missing = size
        while size < 0 or missing > 0:
            piece = self.receive(PIECE_BYTES if size < 0 else missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, max_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
        """The rest in pieces of 1 to `max_bytes` bytes, as they come."""
        while piece := self.receive(max_bytes):
            yield piece


class BytesBody(Body):
    """A body in memory: of a batch part, or a test."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(len(data))
        self._data = data
        self._position = 0

    @property
    def finished(self) -> bool:
        return self._position == len(self._data)

    def receive(self, max_bytes: int) -> bytes:
        piece = self._data[self._position : self._position + max_bytes]
        self._position += len(piece)
        return piece


@dataclass(slots=True, kw_only=True)
class Request:
    """A request whose head has been read.

    Attributes:
        target: As sent: `/path?query`, or `http://host/path?query`.
        path: Before the `?`, percent-encoded, without scheme and host.
        query: After the `?`, raw.
        authority: Host and optional port: of an absolute target, else of the Host header.
        secure: Whether it came over TLS.
        version: `HTTP/1.1` or `HTTP/1.0`.
    """

    method: str
    target: str
    path: str
    query: str = ""
    headers: Headers = field(default_factory=Headers)
    body: Body = field(default_factory=BytesBody)
    authority: str = ""
    secure: bool = False
    version: str = "HTTP/1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice:
    """Part of an open file as a body; closes the descriptor, and does not use its position.

    If the file is shorter, the connection ends.
    """

    descriptor: int
    start: int
    length: int

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(slots=True, kw_only=True)
class Response:
    """A handler's answer.

    Content-Length is added if known; an iterable without one is sent in chunks. HEAD, 204 and 304 have no body; a
    handler's Content-Length stays in an answer to HEAD. Values are Latin-1: for UTF-8 use
    `text.encode().decode("latin-1")`.

    `reason` empty: the standard status text. `takeover`: what the connection becomes after this answer to CONNECT.
    """

    status: int
    headers: Headers = field(default_factory=Headers)
    body: bytes | Iterable[bytes] | FileSlice = b""
    reason: str = ""
    takeover: Takeover | None = None

    @property
    def length(self) -> int | None:
        """Bytes of the body, from the Content-Length or the body; None if unknown. Raises ValueError."""
        if text := self.headers.get("content-length"):
            return int(text)
        if isinstance(self.body, FileSlice):
            return self.body.length
        return len(self.body) if isinstance(self.body, bytes) else None

    def close(self) -> None:
        """Release the body of a response that is not sent. The server closes what it sends."""
        close = getattr(self.body, "close", None)
        if close is not None:
            close()
