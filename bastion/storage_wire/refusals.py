"""The service's error answers: status, reason and message, as JSON, text or XML.

Every error passes through here, so that it has the same status in both APIs.
"""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from bastion.net.http1 import Headers, Response


class Refusal(Exception):
    """An error answer.

    Attributes:
        reason: The JSON API's: `notFound`, `conditionNotMet`, ...
        code: The XML API's: `NoSuchKey`, `PreconditionFailed`, ...
        location: The wrong part of the request: `("parameter", "maxResults")`.
        headers: Further fields of the answer.
        details: A further text of the XML API's answer.
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
        details: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.code = code or _XML_CODES.get(status, "InvalidArgument")
        self.location = location
        self.headers = headers
        self.details = details


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
    """400: the request is not valid."""
    return Refusal(400, "invalid", message, code=code)


def invalid_parameter(name: str, value: str) -> Refusal:
    """400: a query parameter has an invalid value."""
    return Refusal(400, "invalidParameter", f"Invalid value for {name}: {value!r}", location=("parameter", name))


def required(name: str) -> Refusal:
    """400: a required part is missing."""
    return Refusal(400, "required", f"Required parameter: {name}", location=("parameter", name))


def not_allowed(method: str, path: str) -> Refusal:
    """405: the resource does not support this method."""
    return Refusal(405, "methodNotAllowed", f"The method {method} is not allowed on {path}.")


def not_satisfiable(size: int) -> Refusal:
    """416: the range begins past the end; the answer has the object's size."""
    return Refusal(
        416,
        "requestedRangeNotSatisfiable",
        "The requested range cannot be satisfied.",
        headers=(("Content-Range", f"bytes */{size}"),),
    )


def as_json(refusal: Refusal) -> Response:
    """Return the JSON API's form; a 304 has no body."""
    if refusal.status == 304:
        return Response(status=304, headers=Headers(refusal.headers))
    item = {"message": refusal.message, "domain": "global", "reason": refusal.reason}
    if refusal.location:
        item["locationType"], item["location"] = refusal.location
    document = {"error": {"code": refusal.status, "message": refusal.message, "errors": [item]}}
    headers = Headers((("Content-Type", "application/json; charset=UTF-8"), *refusal.headers))
    return Response(status=refusal.status, headers=headers, body=json.dumps(document).encode())


def as_text(refusal: Refusal) -> Response:
    """Return the form of downloads through the JSON API: plain text."""
    headers = Headers((("Content-Type", "text/html; charset=UTF-8"), *refusal.headers))
    body = b"" if refusal.status == 304 else refusal.message.encode()
    return Response(status=refusal.status, headers=headers, body=body)


def as_xml(refusal: Refusal) -> Response:
    """Return the XML API's form."""
    headers = Headers((("Content-Type", "application/xml; charset=UTF-8"), *refusal.headers))
    if refusal.status == 304:
        return Response(status=304, headers=headers)
    details = f"<Details>{escape(refusal.details)}</Details>" if refusal.details else ""
    body = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{refusal.code}</Code>"
        f"<Message>{escape(refusal.message)}</Message>{details}</Error>"
    )
    return Response(status=refusal.status, headers=headers, body=body.encode("utf-8", "replace"))
