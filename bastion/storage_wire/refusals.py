"""How the service says no: a status, a reason in its vocabulary, and words; in JSON, as text, or in XML.

Layer: storage_api. Every error that reaches a client passes here once, so that one mistake has one status in both APIs.
"""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from bastion.net.http1 import Headers, Response


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


def not_satisfiable(size: int) -> Refusal:
    """416: a range that begins past the end; says how large the object is."""
    return Refusal(
        416,
        "requestedRangeNotSatisfiable",
        "The requested range cannot be satisfied.",
        headers=(("Content-Range", f"bytes */{size}"),),
    )


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
