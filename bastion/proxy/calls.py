"""A request to the proxy, and the building blocks of answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bastion.net.http1 import Body, Headers, Request, Response
from bastion.net.http1.head import HOP_BY_HOP
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
# Headers of the service's own connection. The proxy writes its own date; alternative routes would bypass it.
OF_THE_SERVICE = frozenset({"alt-svc", "date"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the handlers of one proxy share; thread-safe.

    `encrypt` is for new objects in mapped buckets; existing ciphertext is always decrypted. `allow_plaintext` lets
    clients read plaintext in a mapped bucket. `memory` is for the buffers of uploads and downloads.
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
    """A request whose target is known."""

    request: Request
    route: Route
    query: Query
    parts: Parts

    def document(self) -> dict[str, Any]:
        """The request's body as a JSON object; {} for an empty body. Raises Refusal if invalid or too large."""
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
        """Send a request to the client's host, by default as the client sent it. Raises UpstreamUnavailable."""
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
        """Pass the request and its answer through, by default to the service. Raises UpstreamUnavailable."""
        body = self.request.body
        sent: bytes | Iterable[bytes | memoryview] = b"" if body.finished else gathered(body)
        asked = self._asked(None, None, None, sent, body.length)
        return relayed((upstream or self.parts.upstream).ask(asked), self.request)

    def pass_on_alone(self) -> Response:
        """Like `pass_on`, without the body."""
        return relayed(self.ask(), self.request)


def gathered(body: Body) -> Iterator[memoryview]:
    """Yield a body in large pieces, in reused memory: each piece is valid until the next."""
    memory = memoryview(bytearray(PIECE_BYTES if body.length is None else min(PIECE_BYTES, body.length)))
    while count := body.readinto(memory):
        yield memory[:count]


def origin_form(request: Request) -> str:
    """`/path?query` of a request, as sent."""
    return f"{request.path}?{request.query}" if request.query else request.path


def end_to_end(headers: Headers, *, without: frozenset[str] = frozenset()) -> Headers:
    """The end-to-end headers, except those in `without` (lower case)."""
    named = {name.strip().lower() for value in headers.get_all("connection") for name in value.split(",")}
    dropped = HOP_BY_HOP | named | without
    return Headers((name, value) for name, value in headers.items() if name.lower() not in dropped)


def relayed(answer: Answer, request: Request) -> Response:
    """Return an answer as a streaming response, which owns the answer."""
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
    """Return an error answer of the service as a response.

    Raises UpstreamUnavailable if it looks like the object: none of its bytes was authenticated.
    """
    if answer.status < 300:
        answer.close()
        raise UpstreamUnavailable(f"the service answered {answer.status}, which is not a valid answer here; try again")
    return relayed(answer, request)


def secured(location: str, request: Request) -> str:
    """Rewrite an address at the client's own host to https, in case the service behind plain HTTP uses http."""
    plain = f"http://{request.authority}/"
    return f"https://{location.removeprefix('http://')}" if location.startswith(plain) and request.secure else location


class AnswerBody:
    """The body of an answer, which it owns."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        answer = self._answer
        while piece := answer.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._answer.close()
