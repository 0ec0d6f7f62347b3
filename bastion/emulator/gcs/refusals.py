"""How the endpoint says no: a status, a reason in the service's vocabulary, and words; in JSON, as text, or in XML.

Layer: emulator. Every error that reaches a client passes here once, so that one mistake has one status in both APIs.
"""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from bastion.core.errors import AccessDenied, StoreError, StoreUnavailable
from bastion.emulator.gcs import resources
from bastion.http1 import Headers, Response

_PRECONDITION = "At least one of the pre-conditions you specified did not hold."


class Refusal(Exception):
    """An answer that is not what the client asked for.

    Attributes:
        reason: As the JSON API names it: `notFound`, `conditionNotMet`, ...
        code: As the XML API names it: `NoSuchKey`, `PreconditionFailed`, ...
        location: Which part of the request is at fault, as (kind, name): `("parameter", "maxResults")`.
        headers: Further fields of the answer.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        code: str = "",
        location: tuple[str, str] | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.code = code or _XML_CODES.get(status, "InvalidArgument")
        self.location = location
        self.headers = headers


_XML_CODES = {
    304: "NotModified",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    409: "Conflict",
    411: "MissingContentLength",
    412: "PreconditionFailed",
    413: "EntityTooLarge",
    416: "InvalidRange",
    501: "NotImplemented",
}


def invalid(message: str, *, code: str = "InvalidArgument") -> Refusal:
    """400: the request cannot be what it should be."""
    return Refusal(400, "invalid", message, code=code)


def invalid_parameter(name: str, value: str) -> Refusal:
    """400: a query parameter has a value that it cannot have."""
    return Refusal(400, "invalidParameter", f"Invalid value for {name}: {value!r}", location=("parameter", name))


def required(name: str) -> Refusal:
    """400: something that the call needs is missing."""
    return Refusal(400, "required", f"Required parameter: {name}", location=("parameter", name))


def not_allowed(method: str, path: str) -> Refusal:
    """405: there is such a thing, but not with this method."""
    return Refusal(405, "methodNotAllowed", f"The method {method} is not allowed on {path}.")


def not_served(method: str, path: str) -> Refusal:
    """501: the real service may know this call; this endpoint does not."""
    return Refusal(
        501, "notImplemented", f"This endpoint does not serve {method} {path}; docs/reference/storage-endpoint.md does."
    )


def not_satisfiable(size: int) -> Refusal:
    """416: a range that begins past the end; says how large the object is."""
    return Refusal(
        416,
        "requestedRangeNotSatisfiable",
        "The requested range cannot be satisfied.",
        headers=(("Content-Range", f"bytes */{size}"),),
    )


def of_storage(error: resources.StorageError) -> Refusal:
    """What the storage refused, in the API's terms."""
    said = str(error)
    match error:
        case resources.NotModified():
            return Refusal(304, "notModified", said)
        case resources.ConditionFailed():
            message = f"{_PRECONDITION} ({said})" if said else _PRECONDITION
            return Refusal(412, "conditionNotMet", message, location=("header", "If-Match"))
        case resources.NoSuchBucket():
            return Refusal(404, "notFound", f"The specified bucket does not exist. ({said})", code="NoSuchBucket")
        case resources.NoSuchObject():
            return Refusal(404, "notFound", said)
        case resources.NoSuchUpload():
            return Refusal(404, "notFound", said, code="NoSuchUpload")
        case resources.BucketExists():
            message = "Your previous request to create the named bucket succeeded and you already own it."
            return Refusal(409, "conflict", message, code="BucketAlreadyOwnedByYou")
        case resources.BucketNotEmpty():
            return Refusal(
                409, "conflict", f"The bucket you tried to delete is not empty. ({said})", code="BucketNotEmpty"
            )
        case resources.ChecksumMismatch():
            return invalid(said, code="BadDigest")
        case _:
            return invalid(said)


def of_store(error: StoreError) -> Refusal:
    """What the folder itself refused: the machine's trouble, not the client's, but for missing rights."""
    if isinstance(error, AccessDenied):
        return Refusal(403, "forbidden", str(error), code="AccessDenied")
    if isinstance(error, StoreUnavailable):
        return Refusal(503, "backendError", str(error), code="ServiceUnavailable")
    return Refusal(500, "internalError", str(error), code="InternalError")


def as_json(refusal: Refusal) -> Response:
    """In the form of the JSON API; a 304 has no body."""
    if refusal.status == 304:
        return Response(status=304, headers=Headers(refusal.headers))
    item = {"message": refusal.message, "domain": "global", "reason": refusal.reason}
    if refusal.location:
        item["locationType"], item["location"] = refusal.location
    document = {"error": {"code": refusal.status, "message": refusal.message, "errors": [item]}}
    headers = Headers((("Content-Type", "application/json; charset=UTF-8"), *refusal.headers))
    return Response(status=refusal.status, headers=headers, body=json.dumps(document).encode())


def as_text(refusal: Refusal) -> Response:
    """In the form that a download of the JSON API has: the bare words."""
    headers = Headers((("Content-Type", "text/html; charset=UTF-8"), *refusal.headers))
    body = b"" if refusal.status == 304 else refusal.message.encode()
    return Response(status=refusal.status, headers=headers, body=body)


def as_xml(refusal: Refusal) -> Response:
    """In the form of the XML API."""
    headers = Headers((("Content-Type", "application/xml; charset=UTF-8"), *refusal.headers))
    if refusal.status == 304:
        return Response(status=304, headers=headers)
    body = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{refusal.code}</Code>"
        f"<Message>{escape(refusal.message)}</Message></Error>"
    )
    return Response(status=refusal.status, headers=headers, body=body.encode("utf-8", "replace"))
