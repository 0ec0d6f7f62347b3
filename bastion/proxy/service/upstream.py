"""What the proxy asks the storage service, and what comes back: the interface between handlers and connections.

Layer: proxy. Handlers know only this; tests answer it in their own process. `forwarding` is the real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from bastion.core.errors import BastionError
from bastion.net.http1 import Headers


class UpstreamUnavailable(BastionError):
    """There was no answer, or no whole one; what was sent may have arrived all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to the storage service.

    Attributes:
        method: `GET` and so on.
        target: `/path?query`, percent-encoded.
        authority: The host (and port) that is meant, as in the Host header.
        headers: Without those that concern one connection only (Host, Content-Length, Connection, ...): whoever sends
            leaves such ones out and writes its own.
        body: All of it, or its pieces in order; an iterable is asked once, by the thread that asks, and a piece is
            sent before the next one is asked for: it may lie in the same memory.
        length: Of an iterable, in bytes; None: nobody knows (it is sent in chunks). Of bytes it need not be given.
    """

    method: str
    target: str
    authority: str
    headers: Headers = field(default_factory=Headers)
    body: bytes | Iterable[bytes | memoryview] = b""
    length: int | None = None


class Answer(Protocol):
    """What the service answered; its body is read by one thread, in order, and it must be closed.

    Both reading methods raise `UpstreamUnavailable` where the body breaks off: a short body always comes with an error.
    """

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def length(self) -> int | None:
        """Bytes of the body that follows (0 after HEAD); None: it comes in chunks."""

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end; without `size`, all that is left."""

    def readinto(self, view: memoryview, /) -> int:
        """Fills the whole view unless the body ends; returns how many bytes were filled."""

    def close(self) -> None:
        """Gives the connection back, or ends it where the body was not read; may be called twice."""


class Upstream(Protocol):
    """The storage service."""

    def ask(self, asked: Asked) -> Answer:
        """Sends a request and waits for the head of the answer; many threads may ask at once.

        An answer that refuses (300 and above) before the body was sent is returned; the rest of the body is not sent.
        What the body's iterator raises ends the connection, so that the service sees no whole request, and goes on to
        the caller.

        Raises:
            UpstreamUnavailable: there was no answer; what was sent may have arrived.
        """
