"""The interface between handlers and connections: requests to the storage service, and its answers."""

from __future__ import annotations

from typing import Protocol

from bastion.net.http1 import Headers
from bastion.net.http1.client import Asked
from bastion.net.http1.client import NoAnswer as UpstreamUnavailable

__all__ = ["Answer", "Asked", "Upstream", "UpstreamUnavailable"]


class Answer(Protocol):
    """An answer of the service; must be closed. One thread reads its body in order.

    Both reading methods raise `UpstreamUnavailable` if the body breaks off.
    """

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def length(self) -> int | None:
        """Bytes of the body (0 after HEAD); None if chunked."""

    def read(self, size: int = -1) -> bytes:
        """Return exactly `size` bytes, fewer only at the end; by default all."""

    def readinto(self, view: memoryview, /) -> int:
        """Fill the view unless the body ends; return the number of bytes."""

    def close(self) -> None:
        """Return the connection to the pool, or close it if the body was not read; idempotent."""


class Upstream(Protocol):
    def ask(self, asked: Asked) -> Answer:
        """Send a request and wait for the head of the answer; thread-safe.

        An error (300 and above) is returned at once, without sending the rest of the body. If the body's iterator
        raises, the connection is closed, so that the service sees no complete request.

        Raises UpstreamUnavailable if there was no answer; what was sent may have arrived.
        """
