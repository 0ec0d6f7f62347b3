"""One request on its way through the proxy, and what every answer is made with.

Layer: proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bastion.net.http1 import Body, Headers, Request, Response
from bastion.net.http1.messages import PIECE_BYTES
from bastion.proxy.memory import MemoryBudget
from bastion.proxy.objects import KnownObjects
from bastion.proxy.routes import Route
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.service.upstream import Answer, Asked, Upstream, UpstreamUnavailable
from bastion.proxy.serving.siblings import Siblings
from bastion.proxy.settings import KeyMapping
from bastion.proxy.uploads.resumables import Resumables
from bastion.storage_wire.documents import json_document
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal

_DOCUMENT_MAX_BYTES = 4 * 1024 * 1024
# Headers of one connection, and those that the sender writes anew.
_OF_CONNECTIONS = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
# What the service says of itself and its own connection: the date is written anew, and other ways lead past the proxy.
OF_THE_SERVICE = frozenset({"alt-svc", "date"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the handlers of one proxy share; all of it is safe to use from many threads.

    Attributes:
        encrypt: Whether what is stored in mapped buckets is encrypted; what is ciphertext is decrypted either way.
        allow_plaintext: Whether plaintext that lies in a mapped bucket may be read.
        memory: For the buffers of uploads and downloads.
    """

    mapping: KeyMapping
    envelopes: Envelopes
    objects: KnownObjects
    resumables: Resumables
    upstream: Upstream
    siblings: Siblings = field(default_factory=Siblings)
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    encrypt: bool = True
    allow_plaintext: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that has been placed."""

    request: Request
    route: Route
    query: Query
    parts: Parts

    def document(self) -> dict[str, Any]:
        """The request's body as a JSON object; an empty body is an empty one.

        Raises:
            Refusal: it is none, or too large.
        """
        body = self.request.body.read(_DOCUMENT_MAX_BYTES + 1)
        if len(body) > _DOCUMENT_MAX_BYTES:
            raise Refusal(413, "uploadTooLarge", f"The body is larger than {_DOCUMENT_MAX_BYTES} bytes.")
        return json_document(body)

    def ask(
        self,
        *,
        method: str | None = None,
        target: str | None = None,
        headers: Headers | None = None,
        body: bytes | Iterable[bytes | memoryview] = b"",
        length: int | None = None,
    ) -> Answer:
        """Asks the service on behalf of the client, at the host that the client meant; what is not given, as it did.

        Raises:
            UpstreamUnavailable: there was no answer.
        """
        return self.parts.upstream.ask(self._asked(method, target, headers, body, length))

    def _asked(
        self,
        method: str | None,
        target: str | None,
        headers: Headers | None,
        body: bytes | Iterable[bytes | memoryview],
        length: int | None,
    ) -> Asked:
        request = self.request
        return Asked(
            method=request.method if method is None else method,
            target=origin_form(request) if target is None else target,
            authority=request.authority,
            headers=end_to_end(request.headers) if headers is None else headers,
            body=body,
            length=length,
        )

    def pass_on(self, upstream: Upstream | None = None) -> Response:
        """The request as it came, the answer as it comes.

        Args:
            upstream: Whom it is passed on to; None: the service.

        Raises:
            UpstreamUnavailable: there was no answer.
        """
        body = self.request.body
        sent: bytes | Iterable[bytes | memoryview] = b"" if body.finished else gathered(body)
        asked = self._asked(None, None, None, sent, body.length)
        return relayed((upstream or self.parts.upstream).ask(asked), self.request)

    def pass_on_alone(self) -> Response:
        """The request as it came, but for a body, of which it makes no use; the answer as it comes.

        Raises:
            UpstreamUnavailable: there was no answer.
        """
        return relayed(self.ask(), self.request)


def gathered(body: Body) -> Iterator[memoryview]:
    """A body in pieces as large as are sent at once, in memory that is used again: each is good until the next one."""
    memory = memoryview(bytearray(PIECE_BYTES if body.length is None else min(PIECE_BYTES, body.length)))
    while count := body.readinto(memory):
        yield memory[:count]


def origin_form(request: Request) -> str:
    """`/path?query` of a request, as it was sent."""
    return f"{request.path}?{request.query}" if request.query else request.path


def end_to_end(headers: Headers, *, without: frozenset[str] = frozenset()) -> Headers:
    """Those headers that concern more than one connection.

    Args:
        without: Further names, in lower case, that are left out.
    """
    named = {name.strip().lower() for value in headers.get_all("connection") for name in value.split(",")}
    dropped = _OF_CONNECTIONS | named | without
    return Headers((name, value) for name, value in headers.items() if name.lower() not in dropped)


def relayed(answer: Answer, request: Request) -> Response:
    """An answer as a response whose body streams; it owns the answer."""
    headers = end_to_end(answer.headers, without=OF_THE_SERVICE)
    if location := headers.get("location"):
        headers.set("Location", secured(location, request))
    if request.method == "HEAD" or answer.status in (204, 304):
        if request.method == "HEAD" and (length := answer.headers.get("content-length")):
            headers.set("Content-Length", length)
        answer.close()
        return Response(status=answer.status, reason=answer.reason, headers=headers)
    if answer.length is not None:
        headers.set("Content-Length", str(answer.length))
    return Response(status=answer.status, reason=answer.reason, headers=headers, body=AnswerBody(answer))


def refused(answer: Answer, request: Request) -> Response:
    """An answer that is not the object that was asked for, as a response.

    Raises:
        UpstreamUnavailable: it would pass for one; none of its bytes was authenticated.
    """
    if answer.status < 300:
        answer.close()
        raise UpstreamUnavailable(f"the service answered {answer.status}, which is no answer to this; try again")
    return relayed(answer, request)


def secured(location: str, request: Request) -> str:
    """An address at the client's own host as the client reaches it: a service behind plain HTTP names that."""
    plain = f"http://{request.authority}/"
    return f"https://{location.removeprefix('http://')}" if location.startswith(plain) and request.secure else location


class AnswerBody:
    """An answer's bytes as they come; closing it closes the answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        answer = self._answer
        while piece := answer.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._answer.close()
