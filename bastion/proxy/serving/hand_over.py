"""Connections handed from one process of the proxy to another.

Layer: proxy. The kernel passes the descriptor; what was sent on the connection and not read stays in it. Made before
the processes fork, so nobody else on the machine can reach it.
"""

from __future__ import annotations

import errno
import socket
import time

_MARK = b"."
_PAUSE_SECONDS = 0.01


class Inbox:
    """What one process takes; an open one serves `bastion.net.http1.HttpServer` as its listener."""

    def __init__(self) -> None:
        self._give, self._take = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # The two ends are separate, so the one that takes still waits.
        self._give.setblocking(False)

    def give(self, connection: socket.socket, *, patience_seconds: float = 0.0) -> bool:
        """Hands a connection over; the caller still has its own descriptor, and closes it.

        Args:
            patience_seconds: How long the other process may take to have room.

        Returns:
            False: it has no room.

        Raises:
            OSError: it takes none any more.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                socket.send_fds(self._give, [_MARK], [connection.fileno()])
                return True
            except OSError as error:
                # Full, by one of the two limits that the kernel has.
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                    raise
            # To be woken would be late: the kernel does that when most of the room is free, and for one limit only.
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_SECONDS)

    def accept(self) -> tuple[socket.socket, None]:
        """Waits for the next connection.

        Raises:
            OSError: it is shut, or there is no descriptor left for the connection, which has ended then.
        """
        mark, descriptors, _, _ = socket.recv_fds(self._take, len(_MARK), 1, socket.MSG_CMSG_CLOEXEC)
        if descriptors:
            return socket.socket(fileno=descriptors[0]), None
        if mark:
            raise OSError(errno.EMFILE, "no descriptor is left for a connection")
        raise OSError(errno.ESHUTDOWN, "no connections are handed over any more")

    def shutdown(self, how: int) -> None:
        """Wakes who waits in `accept`; nothing can be handed over any more."""
        self._take.shutdown(how)

    def close(self) -> None:
        """For this process; others keep their ends."""
        self._give.close()
        self._take.close()
