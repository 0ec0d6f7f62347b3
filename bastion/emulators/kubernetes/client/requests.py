"""Requests to a Kubernetes API server and its watches: raw JSON over HTTPS, with a bearer token."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from bastion.core.errors import EXIT_INFRASTRUCTURE, BastionError

Obj = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]

_ANSWER_SECONDS = 30.0
# A watch is silent until something changes; the server ends it after `timeout_seconds`.
_WATCH_SLACK_SECONDS = 15.0
# Shorter than servers keep idle connections, so that a request seldom meets a closed one.
_IDLE_SECONDS = 15.0
_IDLE_CONNECTIONS = 16


class Address(Protocol):
    """Where an API server is, and how to talk to it."""

    @property
    def server(self) -> str: ...  # https://HOST:PORT

    @property
    def token(self) -> str: ...

    @property
    def ca_file(self) -> Any: ...  # a path


class ApiError(BastionError):
    """A refusal: the HTTP status, and reason and message of the server's `Status` object."""

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, code: int, reason: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({code} {reason})")
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Unreachable(ApiError):
    """No complete answer: a request that writes may have been carried out. Its `code` is 0."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class Watch(Iterator[Obj]):
    """The events of one watch, ends when the server ends it. `close` may be called by any thread.

    Raises Unreachable if the connection breaks.
    """

    def __init__(self, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse, where: str) -> None:
        self._connection = connection
        # The answer of a server that will close takes the socket from its connection.
        self._socket: socket.socket | None = connection.sock
        self._answer = answer
        self._where = where
        self._closed = False

    def __next__(self) -> Obj:
        try:
            line = self._answer.readline()
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            if self._closed:
                raise StopIteration from None
            raise Unreachable(f"the watch of {self._where} broke off ({error}); watch again") from error
        if not line or self._closed:
            raise StopIteration
        try:
            event: Obj = json.loads(line)
        except ValueError as error:
            raise Unreachable(f"the watch of {self._where} broke off in an event; watch again") from error
        return event

    def close(self) -> None:
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Of the TCP socket: TLS's own shutdown is not made for another thread.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection; called by the thread that iterates."""
        self.close()
        self._answer.close()
        self._connection.close()


class ApiClient:
    """Requests to one API server; shared by threads. Paths are API paths, `/api/v1/namespaces/default/pods/x`.

    All calls raise ApiError. Objects are JSON objects.
    """

    def __init__(self, server: str, token: str, context: ssl.SSLContext) -> None:
        url = urllib.parse.urlsplit(server)
        if url.scheme != "https" or not url.hostname:
            raise ApiError(0, "BadAddress", f"{server!r} is not an address https://HOST:PORT; check the server's URL")
        self._host, self._port = url.hostname, url.port or 443
        self._token = token
        self._context = context
        self._idle: list[tuple[float, http.client.HTTPSConnection]] = []
        self._lock = threading.Lock()

    @staticmethod
    def connect(address: Address) -> ApiClient:
        """Return a client; nothing is sent yet. Raises OSError if the CA file cannot be read."""
        return ApiClient(address.server, address.token, ssl.create_default_context(cafile=str(address.ca_file)))

    def get(self, path: str) -> Obj:
        return self.request("GET", path)

    def list(self, path: str, **query: str | int) -> Obj:
        """One page. Names as in the API (`labelSelector`, `limit`); `continue_` for `continue`."""
        return self.request("GET", path, query={name.rstrip("_"): value for name, value in query.items()})

    def create(self, path: str, obj: Obj) -> Obj:
        return self.request("POST", path, obj)

    def update(self, path: str, obj: Obj) -> Obj:
        return self.request("PUT", path, obj)

    def patch(self, path: str, patch: Obj) -> Obj:
        """Merge: null removes a field, lists are replaced."""
        return self.request("PATCH", path, patch, content_type="application/merge-patch+json")

    def delete(
        self,
        path: str,
        *,
        propagation: Propagation = "Background",
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> Obj:
        """Return the object if it stays for now (finalizers, grace), or a `Status`; 409 if it has another uid."""
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        return self.request("DELETE", path, options)

    def watch(self, path: str, *, resource_version: str, timeout_seconds: int = 300, **query: str | int) -> Watch:
        """Events `{"type": ..., "object": ...}` after a version, with bookmarks; an ERROR event carries a `Status`.

        Release it after use.
        """
        asked = {
            **query,
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
            "allowWatchBookmarks": "true",
        }
        connection = self._connect(timeout_seconds + _WATCH_SLACK_SECONDS)
        watch: Watch | None = None
        try:
            answer = self._exchange(connection, "GET", _target(path, asked), None, "application/json")
            if answer.status != 200:
                raise _refusal(answer.status, answer.headers.get("Retry-After"), self._read(answer, path))
            watch = Watch(connection, answer, path)
        finally:
            if watch is None:
                connection.close()
        return watch

    def request(
        self,
        method: str,
        path: str,
        body: Obj | None = None,
        *,
        query: dict[str, str | int] | None = None,
        content_type: str = "application/json",
    ) -> Obj:
        connection = self._take()
        try:
            answer = self._exchange(connection, method, _target(path, query or {}), body, content_type)
            data = self._read(answer, path)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, reusable=not answer.will_close)
        if answer.status >= 300:
            raise _refusal(answer.status, answer.headers.get("Retry-After"), data)
        try:
            document: Obj = json.loads(data)
        except ValueError as error:
            raise Unreachable(f"the answer to {method} {path} is not JSON; is this an API server?") from error
        return document

    def close(self) -> None:
        """Close idle connections. Watches are closed by their users."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        target: str,
        body: Obj | None,
        content_type: str,
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = content_type
        try:
            connection.request(method, target, data, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"the API server {self._host}:{self._port} did not answer {method} ({error}); is it running?"
            ) from error

    def _read(self, answer: http.client.HTTPResponse, path: str) -> bytes:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"the answer about {path} broke off ({error}); try again") from error

    def _connect(self, timeout_seconds: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=self._context)

    def _take(self) -> http.client.HTTPSConnection:
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._idle:
                    break
                since, connection = self._idle.pop()
            if now - since < _IDLE_SECONDS and not _has_ended(connection):
                return connection
            connection.close()
        return self._connect(_ANSWER_SECONDS)

    def _give_back(self, connection: http.client.HTTPSConnection, *, reusable: bool) -> None:
        with self._lock:
            if reusable and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


def _has_ended(connection: http.client.HTTPSConnection) -> bool:
    """Whether the server closed an idle connection: then there is something to read, its last word or the end."""
    if connection.sock is None:
        return True
    arrivals = select.poll()
    arrivals.register(connection.sock, select.POLLIN)
    return bool(arrivals.poll(0))


def _target(path: str, query: dict[str, str | int]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def _refusal(code: int, retry_after: str | None, data: bytes) -> ApiError:
    try:
        status: Any = json.loads(data)
    except ValueError:
        status = None
    if not isinstance(status, dict):
        status = {}
    message = status.get("message") or data[:200].decode("utf-8", "replace") or "no message"
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    return ApiError(code, str(status.get("reason") or "Unknown"), str(message), retry_after=seconds)
