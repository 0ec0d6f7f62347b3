"""`objects.insert` of the JSON API: media, multipart and resumable uploads.

An object is visible only when its last byte has arrived and all declared checksums and preconditions hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from bastion.emulators.gcs import sessions
from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.json_resources import Json, attributes_of
from bastion.emulators.gcs.resources import Attributes
from bastion.net.http1 import Headers, Response
from bastion.storage_wire.declared_sums import Declared, both_declared, declared_in_headers, declared_in_resource
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.multipart_related import MultipartRelated, boundary_of
from bastion.storage_wire.query import natural_number
from bastion.storage_wire.refusals import invalid, not_allowed, required
from bastion.storage_wire.unfinished import incomplete


def upload(call: Call, bucket_name: str) -> Response:
    """Answer a request below `/upload/.../b/BUCKET/o`."""
    if "upload_id" in call.parameters:
        return _session(call)
    if call.method not in ("POST", "PUT"):
        raise not_allowed(call.method, call.request.path)
    match call.parameters.get("uploadType"):
        case "":
            raise required("uploadType")
        case "media":
            return _media(call, bucket_name)
        case "multipart":
            return _multipart(call, bucket_name)
        case "resumable":
            return _begin(call, bucket_name)
        case other:
            raise invalid(f"Invalid upload type {other[:80]!r}; use media, multipart or resumable.")


def insert_without_media(call: Call, bucket_name: str) -> Response:
    """Answer `POST /b/BUCKET/o` outside of `/upload`: a resource alone makes an empty object."""
    document = call.document()
    return _store(call, bucket_name, _name(call, document), attributes_of(document), Declared(), ())


def _media(call: Call, bucket_name: str) -> Response:
    headers = call.request.headers
    attributes = Attributes(
        content_type=headers.get("Content-Type"), content_encoding=call.parameters.get("contentEncoding")
    )
    return _store(call, bucket_name, _name(call, {}), attributes, Declared(), call.request.body.pieces())


def _multipart(call: Call, bucket_name: str) -> Response:
    headers = call.request.headers
    parts = MultipartRelated(call.request.body, boundary_of(headers.get("Content-Type")))
    attributes = attributes_of(
        parts.document, content_type=parts.content_type, content_encoding=call.parameters.get("contentEncoding")
    )
    name = _name(call, parts.document)
    return _store(call, bucket_name, name, attributes, declared_in_resource(parts.document), parts.pieces())


def _store(
    call: Call, bucket_name: str, name: str, attributes: Attributes, declared: Declared, pieces: Iterable[bytes]
) -> Response:
    preconditions = call.parameters.preconditions()
    declared = both_declared(declared, declared_in_headers(call.request.headers))
    bucket = call.buckets.open(bucket_name)
    with bucket.stage() as staging:
        for piece in pieces:
            staging.write(piece)
        return call.answer_object(bucket.commit(name, staging, attributes, preconditions, declared=declared))


def _begin(call: Call, bucket_name: str) -> Response:
    document = call.document()
    headers = call.request.headers
    attributes = attributes_of(
        document,
        content_type=headers.get("X-Upload-Content-Type"),
        content_encoding=call.parameters.get("contentEncoding"),
    )
    length = headers.get("X-Upload-Content-Length")
    upload_id = call.uploads.begin(
        bucket_name,
        _name(call, document),
        attributes,
        call.parameters.preconditions(),
        size=natural_number("X-Upload-Content-Length", length) if length else None,
        declared=both_declared(declared_in_resource(document), declared_in_headers(headers)),
        caller=call.caller,
    )
    address = (
        f"{call.base}/upload/storage/v1/b/{quote(bucket_name, safe='')}/o?uploadType=resumable&upload_id={upload_id}"
    )
    return Response(status=200, headers=Headers((("Location", address), ("X-GUploader-UploadID", upload_id))))


def _session(call: Call) -> Response:
    upload_id = call.parameters.get("upload_id")
    match call.method:
        case "PUT" | "POST":
            progress = sessions.advance(call.uploads, upload_id, call.request)
            if progress.resource is None:
                return incomplete(progress.persisted)
            return call.answer_object(progress.resource)
        case "DELETE":
            call.uploads.find(upload_id).cancel()
            return sessions.cancelled()
        case _:
            raise not_allowed(call.method, call.request.path)


def _name(call: Call, document: Json) -> str:
    name = call.parameters.get("name") or text_field(document, "name")
    if not name:
        raise required("name")
    return name
