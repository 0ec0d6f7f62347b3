"""The storage service over the network: kept connections, verified certificates.

Invariants:

* Data for a storage host leaves this machine over TLS with a verified certificate, unless `GCS_PROXY_UPSTREAM` (for
  emulators and tests) names another service.
* A connection serves one request at a time. It is reused only if it looks alive and was not idle for long.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from bastion.core.errors import Refused
from bastion.net.http1 import Headers
from bastion.net.http1.client import Exchange, HttpAnswer
from bastion.proxy.service.intercepted import split_authority
from bastion.proxy.service.roots import trusting
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable

_HTTPS_PORT = 443
_HTTP_PORT = 80
# Safe to repeat if a kept connection turns out to be closed.
_HARMLESS = frozenset(("GET", "HEAD"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    host: str
    port: int
    secure: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idle:
    place: Place
    exchange: Exchange
    since: float


class ForwardingUpstream:
    """Asks the storage service; thread-safe.

    Args:
        endpoint: `http(s)://host:port` that serves all storage hosts; empty: each host itself. Raises Refused if
            invalid.
        trust: TLS settings; None: those of this machine.
        connect_seconds: Timeout of a connection; with the TLS handshake at most twice that.
        silence_seconds: The maximum wait for an answer, between its bytes, or to send.
        idle_max: The maximum number of unused connections.
    """

    def __init__(
        self,
        *,
        endpoint: str = "",
        trust: ssl.SSLContext | None = None,
        connect_seconds: float = 20.0,
        silence_seconds: float = 180.0,
        idle_seconds: float = 60.0,
        idle_max: int = 64,
    ) -> None:
        self._endpoint = _endpoint(endpoint) if endpoint else None
        self._trust = trust or trusting()
        self._connect_seconds = connect_seconds
        self._silence_seconds = silence_seconds
        self._idle_seconds = idle_seconds
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._closed = False

    def ask(self, asked: Asked) -> HttpAnswer:
        place = self._endpoint or _place(asked.authority)
        if self._endpoint is not None:
            # The service builds addresses in its answers from this host, and our clients use them.
            asked = replace(asked, headers=Headers([*asked.headers.items(), ("X-Forwarded-Proto", "https")]))

        def done(exchange: Exchange, again: bool) -> None:
            self._give_back(place, exchange, again=again)

        kept = self._take(place)
        if kept is not None:
            try:
                return kept.ask(asked, done)
            except UpstreamUnavailable:
                repeatable = asked.method in _HARMLESS and isinstance(asked.body, bytes)
                if kept.answered or not repeatable:
                    raise
        return self._connect(place).ask(asked, done)

    def close(self) -> None:
        """Close idle connections now, and the others after use."""
        with self._lock:
            self._closed = True
            ended, self._idle = self._idle, []
        for idle in ended:
            idle.exchange.close()

    def _take(self, place: Place) -> Exchange | None:
        """The most recently used live connection, if any."""
        while True:
            with self._lock:
                found = next((idle for idle in reversed(self._idle) if idle.place == place), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if time.monotonic() - found.since < self._idle_seconds and found.exchange.usable:
                return found.exchange
            found.exchange.close()

    def _give_back(self, place: Place, exchange: Exchange, *, again: bool) -> None:
        if not again:
            exchange.close()
            return
        now = time.monotonic()
        with self._lock:
            kept = [*self._idle, _Idle(place=place, exchange=exchange, since=now)]
            stays = 0 if self._closed else self._idle_max
            fresh = [idle for idle in kept if now - idle.since < self._idle_seconds]
            self._idle = fresh[-stays:] if stays else []
            ended = [idle for idle in kept if idle not in self._idle]
        for idle in ended:
            idle.exchange.close()

    def _connect(self, place: Place) -> Exchange:
        try:
            connection = socket.create_connection((place.host, place.port), self._connect_seconds)
        except (OSError, UnicodeError) as error:
            raise UpstreamUnavailable(f"cannot connect to {place} ({error}); try again") from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if place.secure:
                connection = self._trust.wrap_socket(connection, server_hostname=place.host, suppress_ragged_eofs=False)
        except (OSError, ValueError) as error:
            connection.close()
            raise UpstreamUnavailable(
                f"cannot make a safe connection to {place} ({error}); nothing was sent"
            ) from error
        return Exchange(connection, where=str(place), silence_seconds=self._silence_seconds)


def _place(authority: str) -> Place:
    try:
        host, port = split_authority(authority)
    except ValueError as error:
        raise UpstreamUnavailable(f"{authority!r} is not a valid host") from error
    # A client's clear-text request goes on over TLS.
    return Place(host=host, port=_HTTPS_PORT if port in (None, _HTTP_PORT) else port, secure=True)


def _endpoint(url: str) -> Place:
    try:
        parts = urlsplit(url)
        secure = {"https": True, "http": False}[parts.scheme]
        host, port = split_authority(parts.netloc)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError
    except (KeyError, ValueError) as error:
        raise Refused(f"{url!r} is not an endpoint; write it as http(s)://host:port") from error
    return Place(host=host, port=port or (_HTTPS_PORT if secure else _HTTP_PORT), secure=secure)
