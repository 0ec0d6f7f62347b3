"""What a connection becomes after the answer to CONNECT: another protocol, or TLS with another handler.

The server keeps counting the connection, and ends it like any other.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bastion.net.http1.messages import Request, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """The client starts TLS, and `handler` gets its requests; they are `secure`."""

    context: ssl.SSLContext
    handler: Callable[[Request], Response]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A connection in the hands of a takeover.

    Attributes:
        connection: The server closes it afterwards, and may shut it down before, from another thread.
        unread: What the client sent too early.
        touch: Call it on activity, because the server ends idle connections first.
    """

    connection: socket.socket
    unread: bytes
    touch: Callable[[], None]


class Raw(Protocol):
    """Takes over the bytes of a connection."""

    def run(self, channel: Channel, /) -> None:
        """Run in the connection's thread until the end. May raise `Disconnect`, or OSError if a peer fails."""

    def close(self) -> None:
        """Release everything; always called, after `run` or instead of it."""


Takeover = Secured | Raw
