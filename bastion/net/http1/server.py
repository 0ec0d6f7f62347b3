"""The server: a listener, a thread per connection, an orderly end.

Layer: http1. Invariants: at most `connections_max` connections are served; when one more comes, the one that has
been idle the longest ends. After `close` returns, no thread of the server runs but one whose handler does not come
back.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
import threading
import time
from typing import Any, Protocol

from bastion.net.http1.connection import Admit, Connection, ConnectionLimits, Handler

__all__ = ["Admit", "Handler", "HttpServer"]

_log = logging.getLogger(__name__)

_BACKLOG = 512
# After connections were torn off, their threads need a moment to notice.
_ABORT_SECONDS = 2.0
# Out of file descriptors, accepting fails at once, and would go on failing at full speed.
_ACCEPT_PAUSE_SECONDS = 0.05
# Of all that the process may have, for each connection: its own, and those that its request takes.
_DESCRIPTORS_EACH = 4


class Listener(Protocol):
    """Where connections come from: a listening socket, or what behaves as one."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Waits for the next connection.

        Raises:
            OSError: there is none; after `shutdown` there will be none.
        """

    def shutdown(self, how: int, /) -> None:
        """Wakes who waits in `accept`."""

    def close(self) -> None: ...


class HttpServer:
    """Serves a handler over HTTP/1.1, plain or with TLS.

    Args:
        handler: Called in the connection's thread, by many threads at once. May raise `Disconnect`; what else it
            raises is logged and answered with 500.
        host: Address to listen on.
        port: 0: any.
        tls: Serves HTTPS with it.
        idle_seconds: How long a connection may be silent, or take nothing of what is sent.
        head_seconds: How long a request's head, or the TLS handshake, may take from its first byte.
        head_max_bytes: Longest head.
        connections_max: Most connections at once; fewer where the process may open few files (`ulimit -n`).
        listener: Where connections come from, in place of an address; it is shut down with the server.
        admit: Asked about each connection, with the address of the peer's end and of ours, before a byte of it is
            read; a connection that is not admitted ends at once. None: all are.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        idle_seconds: float = 300.0,
        head_seconds: float = 30.0,
        head_max_bytes: int = 64 * 1024,
        connections_max: int = 1024,
        admit: Admit | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._handler = handler
        self._given_listener = listener
        self._admit = admit
        self._host = host
        self._wanted_port = port
        self._tls = tls
        self._limits = ConnectionLimits(
            idle_seconds=idle_seconds, head_seconds=head_seconds, head_max_bytes=head_max_bytes
        )
        # Whoever may have a connection must be able to get an answer, which takes descriptors, too.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = max(1, min(connections_max, descriptors // _DESCRIPTORS_EACH))
        self._listener: Listener | None = None
        self._accepting: threading.Thread | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}

    def open(self) -> None:
        """Listens and serves.

        Raises:
            OSError: the port is taken.
        """
        self._closing = False
        listener = self._listener = self._given_listener or socket.create_server(
            (self._host, self._wanted_port), backlog=_BACKLOG
        )
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="http-listener", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """The port that is served."""
        assert isinstance(self._listener, socket.socket), "the server is not open at a port"
        return int(self._listener.getsockname()[1])

    def close(self, grace_seconds: float = 5.0) -> None:
        """Ends: no new connections, idle ones at once, busy ones after their request or the grace period."""
        if self._listener is None:
            return
        self._closing = True
        with contextlib.suppress(OSError):
            # Wakes the thread in `accept`; closing alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._accepting is not None:
            with self._changed:
                self._changed.notify_all()
            self._accepting.join()
        self._listener.close()
        self._listener = None
        connections = self._open_connections()
        for connection in connections:
            # All of them first: whoever sees an idle one end may let a busy one go on.
            connection.announce_end()
        for connection in connections:
            connection.finish()
        self._await_end(grace_seconds)
        for connection in self._open_connections():
            connection.abort()
        self._await_end(_ABORT_SECONDS)

    def _open_connections(self) -> list[Connection]:
        with self._changed:
            return list(self._connections)

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self._connections, max(0.0, deadline - time.monotonic()))

    def _accept(self, listener: Listener) -> None:
        while not self._closing:
            try:
                accepted, _ = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                _log.warning("no connection could be accepted: %s", error)
                with self._changed:
                    self._end_idlest()
                time.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            if not self._make_room():
                accepted.close()
                return
            connection = Connection(accepted, self._handler, tls=self._tls, admit=self._admit, limits=self._limits)
            thread = threading.Thread(target=self._run, args=(connection,), name="http-connection", daemon=True)
            with self._changed:
                self._connections[connection] = thread
            try:
                thread.start()
            except RuntimeError as error:
                _log.warning("no thread for a connection: %s", error)
                accepted.close()
                self._forget(connection)

    def _make_room(self) -> bool:
        """Waits until one more connection can be served; False: the server closes."""
        with self._changed:
            while len(self._connections) >= self._connections_max and not self._closing:
                self._end_idlest()
                self._changed.wait(timeout=1.0)
        return not self._closing

    def _end_idlest(self) -> None:
        """Ends the connection that has been idle the longest, if one is idle."""
        idle = [connection for connection in self._connections if connection.idle_since is not None]
        if idle:
            min(idle, key=lambda connection: connection.idle_since or 0.0).make_way()

    def _run(self, connection: Connection) -> None:
        try:
            connection.run()
        finally:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        with self._changed:
            del self._connections[connection]
            self._changed.notify_all()
