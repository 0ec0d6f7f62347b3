"""Change an object's attributes as the client asks, and keep its envelope.

No client may remove or replace our metadata: it holds the only copy of the object's key. A change that repeats the
envelope applies only to the version that the envelope was read from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from bastion.net.http1 import Response
from bastion.proxy.calls import Call, relayed
from bastion.proxy.resources import Json, answered_resource, ask_json, check_named, json_of
from bastion.proxy.sealed.envelope import Envelope, EnvelopeBroken, is_ours, visible
from bastion.proxy.service.targets import requeried
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal, invalid

_TRIES = 5
# Read-only fields that a client may send back as received; they describe the plaintext.
_SUMS = ("crc32c", "md5Hash", "size")
_TAGS = frozenset({"if-match", "if-none-match"})
_CONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")

# From the client's document, the present resource and its envelope: the document to send.
_Sent = Callable[[Json, Json, Envelope], Json]


def change(call: Call) -> Response:
    """Answer PATCH."""
    document = checked_document(call)
    if "contentEncoding" in document or ("metadata" in document and document["metadata"] is None):
        return _bound(call, document, _patch)
    return answered_resource(call, ask_json(call, "PATCH", call.request.path, call.request.query, document=document))


def replace(call: Call) -> Response:
    """Answer PUT: fields that are not named are unset."""
    return _bound(call, checked_document(call), _replacement)


def checked_document(call: Call) -> Json:
    """The resource that a client sends; raises Refusal (400) if it is invalid or sets our metadata."""
    document = {name: value for name, value in call.document().items() if name not in _SUMS}
    metadata = document.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise invalid("The value of metadata must be an object.")
    for name in metadata or {}:
        if is_ours(name):
            raise invalid(f"The metadata {name[:80]!r} belongs to the encrypting proxy; choose another name.")
    return document


def encoded(envelope: Envelope, content_encoding: str) -> Envelope:
    """Return the envelope with this content encoding (empty: none). Raises Refusal (400) if it is invalid."""
    changed = dataclasses.replace(envelope, content_encoding=content_encoding)
    try:
        Envelope.from_metadata(changed.to_metadata())
    except EnvelopeBroken as error:
        raise invalid(f"Invalid value for contentEncoding: {content_encoding[:80]!r}") from error
    return changed


def _patch(document: Json, present: Json, envelope: Envelope) -> Json:
    sent = dict(document)
    metadata: Json = document.get("metadata") or {}
    if "metadata" in document and document["metadata"] is None:
        metadata = dict.fromkeys(visible(present.get("metadata") or {}))
    if "contentEncoding" in document:
        del sent["contentEncoding"]
        changed = encoded(envelope, text_field(document, "contentEncoding"))
        # Entries that the client removed.
        metadata = {**metadata, **dict.fromkeys(envelope.to_metadata()), **changed.to_metadata()}
    return {**sent, "metadata": metadata}


def _replacement(document: Json, present: Json, envelope: Envelope) -> Json:  # noqa: ARG001
    sent = {name: value for name, value in document.items() if name != "contentEncoding"}
    changed = encoded(envelope, text_field(document, "contentEncoding"))
    return {**sent, "metadata": {**(document.get("metadata") or {}), **changed.to_metadata()}}


def _bound(call: Call, document: Json, make: _Sent) -> Response:
    """Read the object, then change exactly the version that was read."""
    path, query = call.request.path, call.request.query
    for _ in range(_TRIES):
        answer = ask_json(call, "GET", path, requeried(query, without=_CONDITIONS), without=_TAGS)
        if answer.status != 200:
            return relayed(answer, call.request)
        present = json_of(answer)
        check_named(call, present)
        _check_conditions(call.query, present)
        envelope = Envelope.from_metadata(present.get("metadata") or {})
        sent = document if envelope is None else make(document, present, envelope)
        version = {"ifMetagenerationMatch": str(present["metageneration"])}
        if "generation" not in call.query:
            version["ifGenerationMatch"] = str(present["generation"])
        bound = requeried(query, without=_CONDITIONS, added=version)
        answer = ask_json(call, call.request.method, path, bound, document=sent)
        if answer.status != 412 or any(name in call.request.headers for name in _TAGS):
            return answered_resource(call, answer)
        answer.close()
    raise UpstreamUnavailable("the object keeps changing; try again")


def _check_conditions(query: Query, present: dict[str, Any]) -> None:
    """Raise Refusal if the client's conditions exclude this version (412 or 304) or are malformed (400)."""
    try:
        generation, metageneration = int(present["generation"]), int(present["metageneration"])
    except (KeyError, TypeError, ValueError) as error:
        raise UpstreamUnavailable("the service described an object without its generation; try again") from error
    matches = query.number("ifGenerationMatch") in (None, generation) and (
        query.number("ifMetagenerationMatch") in (None, metageneration)
    )
    if not matches:
        raise Refusal(
            412,
            "conditionNotMet",
            "At least one of the pre-conditions you specified did not hold.",
            location=("header", "If-Match"),
        )
    if query.number("ifGenerationNotMatch") == generation or (
        query.number("ifMetagenerationNotMatch") == metageneration
    ):
        raise Refusal(304, "notModified", "The object has the version that a pre-condition excludes.")
