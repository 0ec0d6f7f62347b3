"""Objects' bytes through the XML API: `GET` and `HEAD` of `/BUCKET/OBJECT` or at a bucket's own host.

`HEAD` describes an object: headers play the role of the JSON API's resource.
"""

from __future__ import annotations

from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import Call, end_to_end, relayed
from bastion.proxy.objects import Known
from bastion.proxy.reads import reading
from bastion.proxy.reads.entity_tags import demanded_tags
from bastion.proxy.service.targets import requeried, target
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.storage_wire.query import natural_number
from bastion.storage_wire.refusals import Refusal

_GENERATION_MATCH = "x-goog-if-generation-match"
_CONDITIONS = (
    *("If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"),
    *(_GENERATION_MATCH, "x-goog-if-metageneration-match"),
)
_OF_BYTES = frozenset({"accept-encoding", "if-range", "range"})
_KEPT_OF_REFUSALS = ("Retry-After", "WWW-Authenticate")


def read(call: Call) -> Response:
    """Answer a download; see `reading.read`."""
    for name in ("If-Match", "If-None-Match"):
        if value := call.request.headers.get(name):
            call.request.headers.set(name, demanded_tags(value))
    return _head(call) if call.request.method == "HEAD" else reading.read(call, _Xml())


def _head(call: Call) -> Response:
    answer = _ask_head(call)
    try:
        if answer.status != 200:
            return relayed(answer, call.request)
        known = Known.of_headers(call.route.bucket, call.route.name, answer.headers)
        if known.envelope is None:
            return relayed(answer, call.request)
        known = call.parts.objects.opened(known, call.parts.envelopes)
        headers = reading.shown_headers(answer.headers, known)
        headers.set("Content-Length", str(known.plain_bytes))
        return Response(status=200, headers=headers)
    finally:
        answer.close()


def _ask_head(call: Call) -> Answer:
    headers = end_to_end(call.request.headers, without=_OF_BYTES)
    headers.add("Accept-Encoding", "gzip")
    return call.ask(method="HEAD", headers=headers)


class _Xml:
    def may_be(self, call: Call, known: Known) -> bool:
        given = call.request.headers.get(_GENERATION_MATCH).strip()
        demanded = call.query.number("generation"), natural_number(_GENERATION_MATCH, given) if given else None
        return all(generation in (None, known.generation) for generation in demanded)

    def describe(self, call: Call) -> Known | Response:
        answer = _ask_head(call)
        answer.close()
        if answer.status < 300 and answer.status != 200:
            raise UpstreamUnavailable(f"the service answered HEAD with {answer.status}; try again")
        if answer.status != 200:
            # An answer to HEAD has no body that explains the error.
            raise Refusal(
                # A redirect must not reach the client.
                answer.status if answer.status == 304 or answer.status >= 400 else 502,
                "backendError",
                f"The storage service answered {answer.status} {answer.reason}".rstrip() + ".",
                code=_code(answer.status),
                headers=tuple((name, answer.headers.get(name)) for name in _KEPT_OF_REFUSALS if name in answer.headers),
            )
        return Known.of_headers(call.route.bucket, call.route.name, answer.headers)

    def media(self, call: Call, known: Known, headers: Headers, *, described: bool) -> Answer:
        query = call.request.query
        if described:
            query = requeried(query, added={"generation": str(known.generation)})
            for name in _CONDITIONS:
                headers.remove(name)
        elif "generation" not in call.query:
            headers.set(_GENERATION_MATCH, str(known.generation))
        return call.ask(target=target(call.request.path, query), headers=headers)


def _code(status: int) -> str:
    if status in (401, 403):
        return "AccessDenied"
    return "ServiceUnavailable" if status >= 500 else ""
