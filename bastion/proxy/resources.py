"""Objects of the JSON API as their owner sees them: plaintext sizes and sums, nothing of ours in the metadata.

Layer: proxy. Whatever is shown of an object is remembered, too, so that reading it is a single request. The service is
always asked for whole resources, because a selection (`fields`) may leave out what tells ciphertext from plaintext; the
client's selection is made here.
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

# A page of a listing has at most a thousand objects of some 12 KiB.
_DOCUMENT_MAX_BYTES = 64 * 1024 * 1024
# What encryption changes of a resource.
_CHANGED = frozenset({"size", "crc32c", "md5Hash", "metadata", "contentEncoding"})
# Of a request about an object's bytes; or what would make the answer something else than JSON as it is.
_NOT_FOR_JSON = frozenset({"accept-encoding", "if-range", "range"})
_OF_DOCUMENTS = frozenset({"content-encoding", "content-type"})
_NOT_OF_JSON = OF_THE_SERVICE | {"content-encoding", "content-md5", "x-goog-hash"}


def plain_resource(parts: Parts, resource: Mapping[str, Any], *, sums: bool = True) -> Json:
    """An object as its owner sees it; what is plaintext is shown as it is.

    Args:
        resource: As the service shows it, with all fields.
        sums: Whether checksums are wanted: that takes the object's key.

    Raises:
        EnvelopeBroken: somebody changed the envelope, or the length of what it is about.
        KmsUnavailable, KmsRefused: only if `sums`.
        UpstreamUnavailable: this is not what the service says of an object.
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
    """Without our metadata, and without what would be true of the ciphertext only."""
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
    """Asks for a JSON answer with all fields.

    Args:
        path: Percent-encoded.
        query: Raw.
        document: The body; None: there is none.
        without: Names, in lower case, of the client's headers that are left out.

    Raises:
        UpstreamUnavailable: there was no answer.
    """
    without |= _NOT_FOR_JSON if document is not None else _NOT_FOR_JSON | _OF_DOCUMENTS
    headers = end_to_end(call.request.headers, without=without)
    headers.add("Accept-Encoding", "identity")
    whole = requeried(query, without=("fields",), added={"alt": "json"})
    body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
    return call.ask(method=method, target=target(path, whole), headers=headers, body=body)


def json_of(answer: Answer) -> Json:
    """The JSON object that an answer is; closes it.

    Raises:
        UpstreamUnavailable: it is none, or does not come.
    """
    try:
        data = answer.read(_DOCUMENT_MAX_BYTES + 1)
        document = json.loads(data) if len(data) <= _DOCUMENT_MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    finally:
        answer.close()
    if not isinstance(document, dict):
        raise UpstreamUnavailable("the service answered something else than a JSON object; try again")
    return document


def json_answer(answer: Answer, document: Json, wanted: Projection | None) -> Response:
    """A JSON object in place of the one that was answered."""
    headers = end_to_end(answer.headers, without=_NOT_OF_JSON)
    body = json.dumps(projected(document, wanted), separators=(",", ":")).encode()
    return Response(status=answer.status, reason=answer.reason, headers=headers, body=body)


def wanted_of(call: Call) -> Projection | None:
    """What the client selects of the answer; None: all of it.

    Raises:
        Refusal: 400, its selection cannot be read.
    """
    return projection(call.query.get("fields"))


def wants_changed(wanted: Projection | None) -> bool:
    """Whether anything of a resource is wanted that encryption changes."""
    selected = names(wanted)
    return selected is None or not selected.isdisjoint(_CHANGED)


def wants_sums(wanted: Projection | None) -> bool:
    selected = names(wanted)
    return selected is None or "crc32c" in selected


def answered_resource(call: Call, answer: Answer) -> Response:
    """An answer that is an object, as the client's answer; any other as it is.

    Raises:
        EnvelopeBroken, KmsUnavailable, KmsRefused, UpstreamUnavailable: as `plain_resource`.
        Refusal: as `wanted_of`.
    """
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
    """
    Args:
        place: Bucket and name that the resource must have; None: those of the call.

    Raises:
        UpstreamUnavailable: it is another object's.
    """
    if (resource.get("bucket"), resource.get("name")) != (place or (call.route.bucket, call.route.name)):
        raise UpstreamUnavailable("the service described another object than the one it was asked for; try again")


def describe(call: Call) -> Response:
    """Answers a read of an object's resource.

    Raises:
        EnvelopeBroken, KmsUnavailable, KmsRefused, UpstreamUnavailable, Refusal: as `answered_resource`.
    """
    wanted = wanted_of(call)
    if not wants_changed(wanted):
        return call.pass_on_alone()
    # HEAD is asked as GET: the length of the answer is that of what we make of it.
    return answered_resource(call, ask_json(call, "GET", call.request.path, call.request.query))
