"""What may become of a connection after the answer to CONNECT: another protocol, or TLS and another handler.

Layer: http1. A response that has a takeover is sent without a body and is the last of its protocol on the connection;
the server goes on counting the connection, and ends it as any other.
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
    """The client begins TLS, and its requests go to another handler.

    Attributes:
        context: A server's settings.
        handler: As `HttpServer` takes it; its requests are `secure`.
    """

    context: ssl.SSLContext
    handler: Callable[[Request], Response]

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A connection in the hands of who took it over.

    Attributes:
        connection: The server closes it afterwards, and may shut it down before, from another thread.
        unread: What the client sent too early.
        touch: To be called when something passes: the server ends those first that have been still for longest.
    """

    connection: socket.socket
    unread: bytes
    touch: Callable[[], None]


class Raw(Protocol):
    """Somebody who takes the bytes of a connection over."""

    def run(self, channel: Channel, /) -> None:
        """Until it ends; in the connection's thread. May raise `Disconnect`, or OSError when a peer is gone."""

    def close(self) -> None:
        """Gives back what is held; called in any case, after `run` or instead of it."""


Takeover = Secured | Raw
