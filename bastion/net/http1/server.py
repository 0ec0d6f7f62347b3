"""The server: a listener, a thread per connection, an orderly end.

Invariants: at most `connections_max` connections; one more ends the connection that was idle the longest. After
`close`, no thread of the server runs, except in a handler that does not return.
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
# The time that threads of aborted connections need to end.
_ABORT_SECONDS = 2.0
# Without descriptors, accepting fails at once, in a busy loop.
_ACCEPT_PAUSE_SECONDS = 0.05
# Descriptors that a connection may take: its own, and those of its request.
_DESCRIPTORS_EACH = 4


class Listener(Protocol):
    """The source of connections: a listening socket, or an equivalent."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Wait for the next connection. Raises OSError, also after `shutdown`."""

    def shutdown(self, how: int, /) -> None:
        """Wake `accept`."""

    def close(self) -> None: ...


class HttpServer:
    """Serves a handler over HTTP/1.1, plain or with TLS.

    Args:
        handler: Called concurrently, in the connection's thread. May raise `Disconnect`; other exceptions are logged
            and answered with 500.
        port: 0: any.
        tls: For HTTPS.
        idle_seconds: How long a connection may be silent, or accept nothing.
        head_seconds: Time limit of a request's head, or of the TLS handshake.
        connections_max: Limit of connections; lower if the process may open few files (`ulimit -n`).
        listener: Replaces the address; shut down with the server.
        admit: Called with both addresses of each connection before reading; False ends it. None: admit all.
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
        # An admitted client must get an answer, which takes descriptors too.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._connections_max = max(1, min(connections_max, descriptors // _DESCRIPTORS_EACH))
        self._listener: Listener | None = None
        self._accepting: threading.Thread | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._connections: dict[Connection, threading.Thread] = {}

    def open(self) -> None:
        """Listen and serve. Raises OSError if the port is in use."""
        self._closing = False
        listener = self._listener = self._given_listener or socket.create_server(
            (self._host, self._wanted_port), backlog=_BACKLOG
        )
        self._accepting = threading.Thread(target=self._accept, args=(listener,), name="http-listener", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        assert isinstance(self._listener, socket.socket), "the server is not open at a port"
        return int(self._listener.getsockname()[1])

    def close(self, grace_seconds: float = 5.0) -> None:
        """Stop: close idle connections at once, busy ones after their request or the grace period."""
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
            # Tell all first: a client that sees an idle one end may release a busy one.
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
                _log.warning("cannot accept a connection: %s", error)
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
                _log.warning("cannot start a thread for a connection: %s", error)
                accepted.close()
                self._forget(connection)

    def _make_room(self) -> bool:
        """Wait until one more connection can be served; False if the server closes."""
        with self._changed:
            while len(self._connections) >= self._connections_max and not self._closing:
                self._end_idlest()
                self._changed.wait(timeout=1.0)
        return not self._closing

    def _end_idlest(self) -> None:
        """End the connection that has been idle the longest, if any."""
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
