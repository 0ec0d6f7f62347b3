"""Hand connections from one process of the proxy to another.

The kernel passes the descriptor; unread data stays in the connection. An inbox is made before the processes fork, so
nobody else can reach it.
"""

from __future__ import annotations

import errno
import socket
import time

_MARK = b"."
_PAUSE_SECONDS = 0.01


class Inbox:
    """Where one process receives connections; a listener of `bastion.net.http1.HttpServer`."""

    def __init__(self) -> None:
        self._give, self._take = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Separate ends: the receiver blocks, the sender does not.
        self._give.setblocking(False)

    def give(self, connection: socket.socket, *, patience_seconds: float = 0.0) -> bool:
        """Hand a connection over within `patience_seconds`; False if there is no space. Raises OSError after
        `shutdown`.

        The caller keeps and closes its own descriptor.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                socket.send_fds(self._give, [_MARK], [connection.fileno()])
                return True
            except OSError as error:
                # Full, by one of two kernel limits.
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                    raise
            # Poll, because the kernel wakes a waiter late, and for one of the limits only.
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_SECONDS)

    def accept(self) -> tuple[socket.socket, None]:
        """Wait for the next connection.

        Raises OSError after `shutdown`, or if no descriptor is left (the connection is lost).
        """
        mark, descriptors, _, _ = socket.recv_fds(self._take, len(_MARK), 1, socket.MSG_CMSG_CLOEXEC)
        if descriptors:
            return socket.socket(fileno=descriptors[0]), None
        if mark:
            raise OSError(errno.EMFILE, "no descriptor is left for a connection")
        raise OSError(errno.ESHUTDOWN, "the process no longer accepts connections")

    def shutdown(self, how: int) -> None:
        """Wake `accept`, and refuse further connections."""
        self._take.shutdown(how)

    def close(self) -> None:
        """Close it in this process only."""
        self._give.close()
        self._take.close()
