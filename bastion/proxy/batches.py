"""Batches: pass through untouched if no call names a mapped bucket; otherwise answer each call separately."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bastion.net.http1 import FileSlice, Headers, Request, Response
from bastion.proxy.calls import Call, end_to_end, relayed
from bastion.proxy.routes import Action, Route, route
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.storage_wire import batch
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal, as_json

_ANSWER_MAX_BYTES = 16 * 1024 * 1024
# Not allowed in a batch: objects' bytes, and requests other than calls of the JSON API.
_BARRED = frozenset({Action.BATCH, Action.READ, Action.UPLOAD})


def answer(call: Call, single: Callable[[Request], Response]) -> Response:
    """Answer a batch; `single` answers one call of any type.

    Raises Refusal if the batch cannot be read (no call was done), and UpstreamUnavailable if a passed batch has no
    answer.
    """
    taken = batch.taken_apart(call.request)
    if not any(_concerns(call, _placed(request)) for _, request in taken.requests):
        return relayed(call.ask(body=taken.body), call.request)
    outer = end_to_end(call.request.headers, without=frozenset({"content-encoding", "content-type"}))

    def answered(request: Request) -> Response:
        found = _placed(request)
        if found.is_xml or found.action in _BARRED:
            return as_json(
                Refusal(501, "notImplemented", f"{request.method} {request.path} is not supported in a batch.")
            )
        return _collected(single(replace(request, headers=_completed(request.headers, outer))))

    return batch.answered(taken, answered)


def _placed(request: Request) -> Route:
    try:
        query = Query(request.query)
    except Refusal:
        return Route(action=Action.NOT_UNDERSTOOD, why="a query that is not percent-encoded UTF-8")
    return route(request.method, request.authority, request.path, query, request.headers)


def _concerns(call: Call, found: Route) -> bool:
    """Whether a call may be about a mapped bucket, or is not allowed in a batch."""
    if found.is_xml or found.action in _BARRED:
        return True
    if found.action is Action.NOT_UNDERSTOOD and not found.buckets:
        return True
    return any(map(call.parts.mapping.covers, (*found.buckets, *found.suspects)))


def _completed(headers: Headers, outer: Headers) -> Headers:
    """A call's headers plus the batch's headers that it lacks, such as the token."""
    own = end_to_end(headers)
    return Headers([*own.items(), *(item for item in outer.items() if item[0] not in own)])


def _collected(response: Response) -> Response:
    if isinstance(response.body, bytes):
        return response
    try:
        body = _bytes(response.body)
    except UpstreamUnavailable as error:
        return as_json(Refusal(503, "backendError", str(error)))
    finally:
        response.close()
    return replace(response, headers=end_to_end(response.headers), body=body)


def _bytes(body: Iterable[bytes] | FileSlice) -> bytes:
    """Return the body; raise UpstreamUnavailable if it breaks off or is too large."""
    assert not isinstance(body, FileSlice)
    collected = bytearray()
    for piece in body:
        collected += piece
        if len(collected) > _ANSWER_MAX_BYTES:
            raise UpstreamUnavailable(f"an answer in the batch is larger than {_ANSWER_MAX_BYTES} bytes")
    return bytes(collected)
