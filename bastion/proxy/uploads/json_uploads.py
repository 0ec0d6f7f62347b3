"""Uploads of the JSON API into buckets with a mapping: the upload type, and whether to seal.

Objects outside of the mapped prefixes pass through unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bastion.net.http1 import Response
from bastion.proxy.calls import Call, end_to_end, relayed
from bastion.proxy.sealed.sealed_stream import Plaintext
from bastion.proxy.uploads import resumable_uploads
from bastion.proxy.uploads.service_sessions import Declined, declined
from bastion.proxy.uploads.stored import answered
from bastion.proxy.uploads.storing import store
from bastion.proxy.uploads.upload_description import Description, described
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire.declared_sums import Declared
from bastion.storage_wire.multipart_related import MultipartRelated, boundary_of, related_frame
from bastion.storage_wire.refusals import invalid, not_allowed, required


def upload(call: Call) -> Response:
    """Answer a request below `/upload/.../b/BUCKET/o`.

    Raises Refusal if it is invalid; KmsUnavailable and KmsRefused before the storage service was asked;
    UpstreamUnavailable if the result is unknown.
    """
    if "upload_id" in call.query:
        return resumable_uploads.proceed(call)
    if call.request.method == "DELETE":
        raise not_allowed("DELETE", call.request.path)
    if not call.parts.encrypt:
        return call.pass_on()
    match call.query.get("uploadType"):
        case "":
            raise required("uploadType")
        case "media":
            return _media(call)
        case "multipart":
            return _multipart(call)
        case "resumable":
            return _resumable(call)
        case other:
            raise invalid(f"Invalid upload type {other[:80]!r}; use media, multipart or resumable.")


def insert_empty(call: Call) -> Response:
    """Answer `POST /b/BUCKET/o` without media: an empty object, sealed too."""
    document = call.document()
    description = described(document, call.query, call.request.headers, content_type="")
    if _is_sealed(call, description):
        return _stored(call, description, Plaintext(), length=0)
    return relayed(call.ask(headers=_as_json(call), body=json.dumps(document).encode()), call.request)


def _media(call: Call) -> Response:
    headers, body = call.request.headers, call.request.body
    description = described({}, call.query, headers, content_type=headers.get("Content-Type"))
    if not _is_sealed(call, description):
        return call.pass_on()
    return _stored(call, description, Plaintext(body=body, length=body.length), length=body.length)


def _multipart(call: Call) -> Response:
    headers = call.request.headers
    parts = MultipartRelated(call.request.body, boundary_of(headers.get("Content-Type")))
    description = described(parts.document, call.query, headers, content_type=parts.content_type)
    if not _is_sealed(call, description):
        return _passed_on(call, parts)
    return _stored(call, description, Plaintext(parts.pieces()), length=None)


def _resumable(call: Call) -> Response:
    headers = call.request.headers
    document = call.document()
    description = described(document, call.query, headers, content_type=headers.get("X-Upload-Content-Type"))
    if _is_sealed(call, description):
        return resumable_uploads.begin(call, description)
    beginning = Beginning(
        bucket=call.route.bucket,
        name=description.name,
        envelope=None,
        declared=Declared(),
        total=None,
        fields="",
        process=call.parts.siblings.own,
    )
    answer = call.ask(headers=_as_json(call), body=json.dumps(document).encode())
    return resumable_uploads.begun(call, answer, beginning, None)


def _is_sealed(call: Call, description: Description) -> bool:
    return call.parts.mapping.key_for(call.route.bucket, description.name) is not None


def _stored(call: Call, description: Description, plaintext: Plaintext, *, length: int | None) -> Response:
    try:
        return answered(store(call, description, plaintext, length=length), call.query.get("fields"))
    except Declined as error:
        return declined(call, error)


def _as_json(call: Call) -> Any:
    headers = end_to_end(call.request.headers)
    headers.set("Content-Type", "application/json; charset=UTF-8")
    return headers


def _passed_on(call: Call, parts: MultipartRelated) -> Response:
    """Pass on an upload whose first part was read for the object's name."""
    frame = related_frame(parts.document, parts.content_type)
    headers = end_to_end(call.request.headers)
    headers.set("Content-Type", frame.content_type)

    def pieces() -> Iterator[bytes]:
        yield frame.head
        yield from parts.pieces()
        yield frame.tail

    return relayed(call.ask(headers=headers, body=pieces()), call.request)
