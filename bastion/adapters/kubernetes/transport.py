"""Requests to one API server over the official client's connections, with limits of time and size.

The library's pool carries them, not its generated calls: those convert objects to models, repeat requests, and change
between releases. Nothing is repeated here but a read whose idle connection the server had closed, and a request that
was answered 401 after the credentials were loaded again.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError, SSLError, TimeoutError

from bastion.adapters.kubernetes.api_errors import NoAnswer, explain
from bastion.adapters.kubernetes.credentials import Session
from bastion.adapters.kubernetes.operations import Operation
from bastion.core.errors import ProvisionerUnavailable
from bastion.ports import Clock

REQUEST_SECONDS = 10.0
# A page of 500 pods has about 5 MB.
BODY_MAX_BYTES = 128 * 1024 * 1024
LINE_MAX_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
# Credentials are loaded again at most this often.
_RELOAD_SECONDS = 10.0
# After a failed loading, requests fail at once: each would wait for the same plugin.
_FAILED_SECONDS = 3.0
_FAILURES = (HTTPError, OSError)


class Transport:
    """Sends requests; thread-safe.

    Args:
        open_session: Loads the credentials.
        request_seconds: Limit of a request, from connecting to the last byte.
    """

    def __init__(
        self, open_session: Callable[[], Session], *, clock: Clock, request_seconds: float = REQUEST_SECONDS
    ) -> None:
        self._open_session = open_session
        self._clock = clock
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._loaded_at = 0.0
        self._stale = False
        self._failed: ProvisionerUnavailable | None = None
        self._own = _Own()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit all requests that this thread sends inside together."""
        before = self._own.seconds, self._own.deadline
        self._own.seconds = min(before[0], seconds)
        self._own.deadline = min(before[1], self._clock.monotonic() + seconds)
        try:
            yield
        finally:
            self._own.seconds, self._own.deadline = before

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def send(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send a request and return the object of a successful answer; raises the port's errors."""
        data = None if body is None else json.dumps(body).encode()
        deadline = self._deadline(operation)
        response = self._open(method, path, operation, query, data, content_type, deadline)
        whole = self._whole(response, operation, deadline)
        try:
            found = json.loads(whole)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProvisionerUnavailable(f"{operation}: the answer is not JSON; check the server's address")
        return found

    def stream(self, path: str, operation: Operation, *, query: Mapping[str, str], read_seconds: float) -> LineStream:
        """Open a stream of lines; silence of `read_seconds` ends it with ProvisionerUnavailable."""
        deadline = self._deadline(operation)
        response = self._open("GET", path, operation, query, None, "", deadline)
        _limit(response, read_seconds)
        return LineStream(response, operation)

    def _open(
        self,
        method: str,
        path: str,
        operation: Operation,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        deadline: float,
    ) -> urllib3.BaseHTTPResponse:
        """Return a successful answer whose body is unread."""
        target = f"{path}?{urlencode(query)}" if query else path
        own = {"Accept": "application/json", "User-Agent": "bastion"} | (
            {"Content-Type": content_type} if data is not None else {}
        )
        reads_left = 2 if method == "GET" else 1
        while True:
            session = self._current(operation)
            headers = own | session.headers(seconds=self._own.deadline - self._clock.monotonic())
            reads_left -= 1
            try:
                response: urllib3.BaseHTTPResponse = session.pool.request(
                    method,
                    session.server + target,
                    body=data,
                    headers=headers,
                    preload_content=False,
                    retries=False,
                    redirect=False,
                    timeout=urllib3.Timeout(total=max(0.1, deadline - self._clock.monotonic())),
                )
            except ProtocolError as error:
                if reads_left:
                    continue
                raise self._broken(error, operation, session) from error
            except _FAILURES as error:
                raise self._broken(error, operation, session) from error
            if 200 <= response.status < 300:
                return response
            refusal = self._whole(response, operation, deadline)
            if response.status == 401 and self._reloaded(session):
                # Nobody was served, so this may also repeat a write.
                continue
            raise explain(response.status, refusal, operation, retry_after=response.headers.get("Retry-After", ""))

    def _whole(self, response: urllib3.BaseHTTPResponse, operation: Operation, deadline: float) -> bytes:
        """Read the body to its end, within the limits."""
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise NoAnswer(self._late(operation))
                _limit(response, left)
                part = response.read1(_CHUNK_BYTES)
                if not part:
                    response.release_conn()
                    return b"".join(parts)
                parts.append(part)
                size += len(part)
                if size > BODY_MAX_BYTES:
                    raise ProvisionerUnavailable(f"{operation}: the answer exceeds {BODY_MAX_BYTES} bytes")
        except _FAILURES as error:
            response.close()
            raise self._broken(error, operation, None) from error
        except ProvisionerUnavailable:
            response.close()
            raise

    def _current(self, operation: Operation) -> Session:
        # Another thread may be waiting for a plugin that loads them.
        left = self._own.deadline - self._clock.monotonic()
        if not self._lock.acquire(timeout=min(max(0.0, left), threading.TIMEOUT_MAX)):
            raise NoAnswer(f"{operation}: its credentials are still being loaded; it is sent later")
        try:
            if self._session is None or (self._stale and self._may_reload()):
                self._load()
            assert self._session is not None
            return self._session
        finally:
            self._lock.release()

    def _reloaded(self, refused: Session) -> bool:
        """Load the credentials again unless that was just done; False if a request would carry the same."""
        with self._lock:
            if self._session is not refused:
                return self._session is not None
            if not self._may_reload():
                return False
            self._load()
            return True

    def _may_reload(self) -> bool:
        return self._clock.monotonic() - self._loaded_at >= _RELOAD_SECONDS

    def _load(self) -> None:
        if self._failed is not None and self._clock.monotonic() - self._loaded_at < _FAILED_SECONDS:
            raise ProvisionerUnavailable(str(self._failed)) from self._failed
        try:
            session = self._open_session()
        except ProvisionerUnavailable as error:
            self._failed = error
            raise
        finally:
            self._loaded_at = self._clock.monotonic()
        before, self._session = self._session, session
        self._stale, self._failed = False, None
        if before is not None:
            before.close()

    def _broken(self, error: Exception, operation: Operation, session: Session | None) -> ProvisionerUnavailable:
        if isinstance(error, SSLError):
            # Certificates from a kubeconfig lie in temporary files, which may be swept.
            self._stale = True
        return NoAnswer(_words(error, operation, session.server if session else "", self._late(operation)))

    def _deadline(self, operation: Operation) -> float:
        now = self._clock.monotonic()
        if now >= self._own.deadline:
            raise ProvisionerUnavailable(
                f"{operation}: not sent, since the requests before it took {self._own.seconds:.0f} s; it is sent later"
            )
        return min(now + self._request_seconds, self._own.deadline)

    def _late(self, operation: Operation) -> str:
        seconds = min(self._request_seconds, self._own.seconds)
        return f"{operation}: the API server did not answer within {seconds:.0f} s; {operation.remedy}"


class _Own(threading.local):
    """A thread's limit for several requests together: its length, and its end."""

    seconds = math.inf
    deadline = math.inf


class LineStream:
    """Lines of an answer without end, as JSON objects.

    Iterate in one thread; `close` may be called by any, also while another waits for a line. Ends where the server
    ends the answer; raises ProvisionerUnavailable if it breaks or is silent for too long. A last line without its end
    is dropped.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, operation: Operation) -> None:
        self._response = response
        self._operation = operation
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            for line in self._lines():
                try:
                    event = json.loads(line)
                except (ValueError, RecursionError):
                    event = None
                if not isinstance(event, dict):
                    raise ProvisionerUnavailable(f"{self._operation}: a line of the answer is not JSON")
                yield event
        finally:
            self._response.close()

    def close(self) -> None:
        """End the iteration."""
        self._closed.set()
        try:
            self._response.shutdown()
        except (OSError, ValueError, HTTPError):
            # It has ended already.
            self._response.close()

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while not self._closed.is_set():
            try:
                part = self._response.read1(_CHUNK_BYTES)
            except (*_FAILURES, ValueError) as error:
                if self._closed.is_set():
                    return
                raise ProvisionerUnavailable(
                    _words(
                        error, self._operation, "", f"{self._operation}: the API server fell silent; it is asked again"
                    )
                ) from error
            if not part:
                return
            *lines, rest = (rest + part).split(b"\n")
            yield from (line for line in lines if line.strip())
            if len(rest) > LINE_MAX_BYTES:
                raise ProvisionerUnavailable(f"{self._operation}: a line exceeds {LINE_MAX_BYTES} bytes")


def _limit(response: urllib3.BaseHTTPResponse, seconds: float) -> None:
    """Set the longest silence of the following reads.

    Without a socket (the server closes after this answer) the request's own limit stays.
    """
    sock = getattr(getattr(response, "connection", None), "sock", None)
    if sock is not None:
        sock.settimeout(seconds)


def _words(error: Exception, operation: Operation, server: str, late: str) -> str:
    text = str(error)
    if isinstance(error, (TimeoutError, ReadTimeoutError)) and "refused" not in text and "resolve" not in text:
        return late
    reason = " ".join(text.split()).rpartition(">: ")[2][:300] or type(error).__name__
    where = f" at {server}" if server else ""
    if isinstance(error, SSLError) and "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            f"{operation}: the API server's certificate{where} cannot be verified ({reason}); give the cluster's CA in "
            "ca_file or the kubeconfig, and check the address"
        )
    return f"{operation}: the API server{where} cannot be reached ({reason}); {operation.remedy}"
