"""The other serving processes of the same proxy.

All requests of a resumable upload go to the process where it began: the storage service cannot supply its tail.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from bastion.net.http1.client import Exchange, HttpAnswer
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from bastion.proxy.serving.hand_over import Inbox

# Longer than the longest answer of the storage service, plus the wait for the request before it.
_SILENCE_SECONDS = 400.0
_ROOM_SECONDS = 5.0
_NAME = "the proxy's process that has the upload"


class Sibling:
    """Another process, used like the storage service; thread-safe."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def ask(self, asked: Asked) -> HttpAnswer:
        try:
            own = self._connected()
        except OSError as error:
            raise UpstreamUnavailable(f"{_NAME} cannot be reached ({error}); try again") from error
        exchange = Exchange(own, where=_NAME, silence_seconds=_SILENCE_SECONDS)
        # One request per connection, because local connections cost almost nothing.
        return exchange.ask(asked, lambda ended, _usable: ended.close())

    def _connected(self) -> socket.socket:
        """Connect. Raises OSError if the process is busy or ended, or no descriptor is left."""
        own, others = socket.socketpair()
        with contextlib.closing(others):
            try:
                if not self._inbox.give(others, patience_seconds=_ROOM_SECONDS):
                    raise TimeoutError("it is overloaded")
            except OSError:
                own.close()
                raise
        return own


class Siblings:
    """All serving processes, numbered from 0; `own` is this one. No `inboxes`: it is the only one."""

    def __init__(self, own: int = 0, inboxes: Sequence[Inbox] = ()) -> None:
        self.own = own
        self._count = max(1, len(inboxes))
        self._others = {number: Sibling(inbox) for number, inbox in enumerate(inboxes) if number != own}

    def having(self, number: int) -> Sibling | None:
        """The process with the uploads of process `number`, even of an earlier proxy; None: this one."""
        return self._others.get(number % self._count)
