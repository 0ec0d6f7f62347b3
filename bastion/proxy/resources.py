"""Object resources as their owner sees them: plaintext sizes and checksums, without our metadata.

Every object that is shown is also remembered. The proxy requests whole resources, because a selection (`fields`) may
omit what tells ciphertext from plaintext, and applies the client's selection itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bastion.net.http1 import Response
from bastion.proxy.calls import OF_THE_SERVICE, Call, Parts, end_to_end, relayed
from bastion.proxy.objects import Known
from bastion.proxy.sealed.envelope import visible
from bastion.proxy.service.targets import requeried, target
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.json_fields import Projection, names, projected, projection

Json = dict[str, Any]

# A page has at most a thousand objects of about 12 KiB.
_DOCUMENT_MAX_BYTES = 64 * 1024 * 1024
# Fields that encryption changes.
_CHANGED = frozenset({"size", "crc32c", "md5Hash", "metadata", "contentEncoding"})
# Parameters that concern an object's bytes or change the answer's format.
_NOT_FOR_JSON = frozenset({"accept-encoding", "if-range", "range"})
_OF_DOCUMENTS = frozenset({"content-encoding", "content-type"})
_NOT_OF_JSON = OF_THE_SERVICE | {"content-encoding", "content-md5", "x-goog-hash"}


def plain_resource(parts: Parts, resource: Mapping[str, Any], *, sums: bool = True) -> Json:
    """An object as its owner sees it; plaintext objects are unchanged.

    Args:
        resource: From the service, with all fields.
        sums: Whether to show checksums, which takes the object's key.

    Raises like `Known.of_resource`; with `sums` also KmsUnavailable and KmsRefused.
    """
    known = Known.of_resource(resource)
    known = parts.objects.opened(known, parts.envelopes) if sums else parts.objects.remember(known)
    if known.envelope is None:
        return dict(resource)
    shown = without_ours(resource)
    shown["size"] = str(known.plain_bytes)
    if known.envelope.content_encoding:
        shown["contentEncoding"] = known.envelope.content_encoding
    if known.opened is not None and known.opened.crc32c is not None:
        shown["crc32c"] = crc32c_text(known.opened.crc32c)
    return shown


def without_ours(resource: Mapping[str, Any]) -> Json:
    """Remove our metadata, and the fields that describe the ciphertext."""
    shown = {name: value for name, value in resource.items() if name not in ("crc32c", "md5Hash", "contentEncoding")}
    if metadata := visible(resource.get("metadata") or {}):
        shown["metadata"] = metadata
    else:
        shown.pop("metadata", None)
    return shown


def ask_json(
    call: Call,
    method: str,
    path: str,
    query: str,
    *,
    document: Json | None = None,
    without: frozenset[str] = frozenset(),
) -> Answer:
    """Request a JSON answer with all fields.

    `path` is percent-encoded, `query` raw; `without` has client headers to omit, in lower case.
    """
    without |= _NOT_FOR_JSON if document is not None else _NOT_FOR_JSON | _OF_DOCUMENTS
    headers = end_to_end(call.request.headers, without=without)
    headers.add("Accept-Encoding", "identity")
    whole = requeried(query, without=("fields",), added={"alt": "json"})
    body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
    return call.ask(method=method, target=target(path, whole), headers=headers, body=body)


def json_of(answer: Answer) -> Json:
    """Parse an answer as a JSON object and close it. Raises UpstreamUnavailable."""
    try:
        data = answer.read(_DOCUMENT_MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= _DOCUMENT_MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    finally:
        answer.close()
    if not isinstance(document, dict):
        raise UpstreamUnavailable("the service did not answer with a JSON object; try again")
    return document


def json_answer(answer: Answer, document: Json, wanted: Projection | None) -> Response:
    """Return the answer with this document as its body."""
    headers = end_to_end(answer.headers, without=_NOT_OF_JSON)
    body = json.dumps(projected(document, wanted), separators=(",", ":")).encode()
    return Response(status=answer.status, reason=answer.reason, headers=headers, body=body)


def wanted_of(call: Call) -> Projection | None:
    """The fields that the client selects; None: all. Raises Refusal (400) if the selection is invalid."""
    return projection(call.query.get("fields"))


def wants_changed(wanted: Projection | None) -> bool:
    """Whether the selection includes a field that encryption changes."""
    selected = names(wanted)
    return selected is None or not selected.isdisjoint(_CHANGED)


def wants_sums(wanted: Projection | None) -> bool:
    selected = names(wanted)
    return selected is None or "crc32c" in selected


def answered_resource(call: Call, answer: Answer) -> Response:
    """The answer with its object as the owner sees it; error answers pass."""
    if answer.status != 200:
        return relayed(answer, call.request)
    try:
        wanted = wanted_of(call)
        document = json_of(answer)
    finally:
        answer.close()
    check_named(call, document)
    return json_answer(answer, plain_resource(call.parts, document, sums=wants_sums(wanted)), wanted)


def check_named(call: Call, resource: Mapping[str, Any], place: tuple[str, str] | None = None) -> None:
    """Raise UpstreamUnavailable if the resource is not that of `place` (bucket, name), by default the call's."""
    if (resource.get("bucket"), resource.get("name")) != (place or (call.route.bucket, call.route.name)):
        raise UpstreamUnavailable("the service described a different object; try again")


def describe(call: Call) -> Response:
    """Answer a read of an object's resource."""
    wanted = wanted_of(call)
    if not wants_changed(wanted):
        return call.pass_on_alone()
    # HEAD becomes GET: the answer's length is that of our document.
    return answered_resource(call, ask_json(call, "GET", call.request.path, call.request.query))
