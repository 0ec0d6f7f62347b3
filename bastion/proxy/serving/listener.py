"""The address for clients: requests for the storage service go to the handler, everything else passes through.

Invariants:

* Every request for a storage host reaches the handler: in any spelling of the host, by CONNECT to any port, or in clear
  text. On a connection for a storage host no request reaches another host.
* Other hosts get tunnels only: nothing in them is read.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Iterator

from bastion.core.errors import SealBroken
from bastion.net.http1 import Disconnect, FileSlice, Headers, HttpServer, Request, Response, Secured
from bastion.net.http1.server import Admit, Handler, Listener
from bastion.proxy.service.intercepted import split_authority
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.proxy.serving.tunnel import Tunnel
from bastion.proxy.serving.workload import WorkloadCounter

_log = logging.getLogger(__name__)

_HTTPS_PORT = 443
_HTTP_PORT = 80

Intercepts = Callable[[str, int], bool]


class ProxyListener:
    """An HTTP proxy on this machine.

    Args:
        handler: Answers requests for the storage service; called concurrently.
        intercepts: Whether a host (lower case, no final dot) and port belong to the storage service.
        context: Makes TLS settings for such a host; raises `ValueError` if impossible.
        port: 0: any.
        idle_seconds: The maximum silence of a connection or tunnel.
        connect_seconds: Timeout for the far end of a tunnel.
        admit: As in `HttpServer`.
        listener: As in `HttpServer`, instead of host and port.
        work: Called around each request for the storage service.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        intercepts: Intercepts,
        context: Callable[[str], ssl.SSLContext],
        host: str = "127.0.0.1",
        port: int = 0,
        idle_seconds: float = 300.0,
        connect_seconds: float = 20.0,
        connections_max: int = 1024,
        admit: Admit | None = None,
        listener: Listener | None = None,
        workload: WorkloadCounter | None = None,
    ) -> None:
        self._handler = handler
        self._workload = workload or WorkloadCounter()
        self._intercepts = intercepts
        self._context = context
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._server = HttpServer(
            self._outer,
            host=host,
            port=port,
            idle_seconds=idle_seconds,
            connections_max=connections_max,
            admit=admit,
            listener=listener,
        )

    def open(self) -> None:
        """Start serving. Raises OSError if the port is in use."""
        self._server.open()

    @property
    def port(self) -> int:
        return self._server.port

    def close(self, grace_seconds: float = 5.0) -> None:
        """Stop: close idle connections and tunnels at once, and active requests after the grace period."""
        self._server.close(grace_seconds)

    def _outer(self, request: Request) -> Response:
        """Answer a clear-text request."""
        if request.method == "CONNECT":
            return self._connect(request)
        scheme, colon, _ = request.target.partition("://")
        if not colon or request.target.startswith("/"):
            return _refusal(400, "this is a proxy; set https_proxy to its address, and request the URL that you want")
        if scheme.lower() != "http":
            return _refusal(400, "this proxy supports CONNECT and http:// only")
        if not self._is_intercepted(request.authority, _HTTP_PORT):
            return _refusal(403, "this proxy forwards no clear text: use https://, or add the host to no_proxy")
        return self.answer(request)

    def _connect(self, request: Request) -> Response:
        try:
            host, port = split_authority(request.target)
        except ValueError:
            host, port = "", None
        if port is None or request.body.length:
            return _refusal(400, "CONNECT requires host:port and no body")
        if self._intercepts(host, port):
            return self._secured(host)
        try:
            tunnel = Tunnel(host, port, connect_seconds=self._connect_seconds, idle_seconds=self._idle_seconds)
        except TimeoutError:
            return _refusal(504, f"{host}:{port} did not answer")
        except OSError as error:
            return _refusal(502, f"cannot connect to {host}:{port}: {error.strerror or error}")
        _log.debug("tunnel to %s:%d", host, port)
        return _established(tunnel)

    def _secured(self, host: str) -> Response:
        try:
            context = self._context(host)
        except ValueError:
            return _refusal(400, f"{host[:300]!r} is not a valid host name")
        except OSError as error:
            _log.warning("could not create a certificate: %s", error)
            return _refusal(503, "the proxy is out of file descriptors or disk space; try again")
        return _established(Secured(context=context, handler=self._inner))

    def _inner(self, request: Request) -> Response:
        """Answer a request on a TLS connection for a storage host."""
        if request.method == "CONNECT":
            return _refusal(400, "CONNECT is not allowed on a connection to a storage host")
        if not self._is_intercepted(request.authority, _HTTPS_PORT):
            return _refusal(421, "the request names another host; this connection is for the storage service")
        return self.answer(request)

    def answer(self, request: Request) -> Response:
        self._workload.begin()
        streams = False
        try:
            response = self._handler(request)
            if not isinstance(response.body, (bytes, FileSlice)):
                response.body = _Body(response.body, f"{request.method} {request.path}", self._workload.end)
                streams = True
            return response
        finally:
            if not streams:
                self._workload.end()

    def _is_intercepted(self, authority: str, port: int) -> bool:
        try:
            host, named = split_authority(authority)
        except ValueError:
            return False
        return self._intercepts(host, named or port)


class _Body:
    """A response's body, which it owns. If it breaks off, that is logged and the connection is reset."""

    def __init__(self, body: Iterable[bytes], request: str, on_close: Callable[[], None]) -> None:
        self._body = body
        self._request = request
        self._on_close: Callable[[], None] | None = on_close

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except UpstreamUnavailable as error:
            _log.warning("%s broke off: %s", self._request, error)
            raise Disconnect(reset=True) from None
        except SealBroken as error:
            _log.error("%s broke off: %s", self._request, error)
            raise Disconnect(reset=True) from None

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


def _established(takeover: Secured | Tunnel) -> Response:
    return Response(status=200, reason="Connection established", takeover=takeover)


def _refusal(status: int, message: str) -> Response:
    headers = Headers([("Content-Type", "text/plain; charset=utf-8")])
    return Response(status=status, headers=headers, body=f"{message}\n".encode())
