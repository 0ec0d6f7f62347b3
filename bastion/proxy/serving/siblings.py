"""The other processes of the same proxy, as one of them sees them.

Layer: proxy. Each process has its connections to itself, and everything that it keeps in memory; what it lacks of that
it asks the service for. One thing cannot be asked for: the tail of a resumable upload. So an upload's requests go to
the process where it began, over whatever connection they come.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from bastion.proxy.service.exchange import Exchange, ForwardedAnswer
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from bastion.proxy.serving.hand_over import Inbox

# Longer than the longest answer of the storage service takes, with the wait for the request before it.
_SILENCE_SECONDS = 400.0
_ROOM_SECONDS = 5.0
_NAME = "the proxy's process that has the upload"


class Sibling:
    """Another process; asked as the storage service is, by many threads at once.

    Args:
        inbox: Where it takes connections from other processes.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def ask(self, asked: Asked) -> ForwardedAnswer:
        """See `bastion.proxy.service.upstream.Upstream.ask`."""
        try:
            own = self._connected()
        except OSError as error:
            raise UpstreamUnavailable(f"{_NAME} cannot be reached ({error}); try again") from error
        exchange = Exchange(own, where=_NAME, silence_seconds=_SILENCE_SECONDS)
        # One request each: a connection between processes costs next to nothing.
        return exchange.ask(asked, lambda ended, _usable: ended.close())

    def _connected(self) -> socket.socket:
        """
        Raises:
            OSError: it has too much to do, or takes none any more; or there is no descriptor left here.
        """
        own, others = socket.socketpair()
        with contextlib.closing(others):
            try:
                if not self._inbox.give(others, patience_seconds=_ROOM_SECONDS):
                    raise TimeoutError("it has too much to do")
            except OSError:
                own.close()
                raise
        return own


class Siblings:
    """All processes of a proxy, numbered from 0.

    Args:
        own: The number of this one.
        inboxes: Of each; none: there is one process only.
    """

    def __init__(self, own: int = 0, inboxes: Sequence[Inbox] = ()) -> None:
        self.own = own
        self._count = max(1, len(inboxes))
        self._others = {number: Sibling(inbox) for number, inbox in enumerate(inboxes) if number != own}

    def having(self, number: int) -> Sibling | None:
        """Who has what began in process `number`, be it of an earlier proxy; None: this process."""
        return self._others.get(number % self._count)
