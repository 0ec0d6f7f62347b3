"""The service's own resumable sessions, and the meaning of its answers to uploads.

Parts of a session must end at multiples of 256 KiB, the size of segments.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import Call, end_to_end, relayed
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.segments import sealed_size
from bastion.proxy.service.targets import insert_target
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.proxy.uploads.upload_description import UNFORWARDED_HEADERS, Description
from bastion.storage_wire.documents import json_document
from bastion.storage_wire.refusals import Refusal

_log = logging.getLogger(__name__)

Json = dict[str, Any]

_ANSWER_MAX_BYTES = 4 * 1024 * 1024
# Headers about the client's identity; the others are about the upload.
_IDENTITY = frozenset(
    (
        *("authorization", "user-agent", "x-goog-api-client", "x-goog-encryption-algorithm", "x-goog-encryption-key"),
        *("x-goog-encryption-key-sha256", "x-goog-request-reason", "x-goog-user-project"),
    )
)


class Declined(Exception):
    """The service refused; nothing was stored. The handler closes `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"the service answered {answer.status}")
        self.answer = answer


def forwarded_headers(call: Call) -> Headers:
    """The client's headers for the request with the object, except those about the plaintext."""
    return end_to_end(call.request.headers, without=UNFORWARDED_HEADERS)


def identity_headers(call: Call) -> Headers:
    """The client's identity headers, for the proxy's own requests."""
    items = call.request.headers.items()
    return Headers((name, value) for name, value in items if name.lower() in _IDENTITY)


def begin_session(call: Call, description: Description, envelope: Envelope, query: str, length: int | None) -> Answer:
    """Begin a session of the service for the sealed bytes; the caller closes the answer (2xx).

    `query` is raw; `length` is that of the plaintext, None if unknown. Raises Declined, UpstreamUnavailable.
    """
    headers = forwarded_headers(call)
    headers.set("Content-Type", "application/json; charset=UTF-8")
    headers.set("X-Upload-Content-Type", description.content_type)
    if length is not None:
        headers.set("X-Upload-Content-Length", str(sealed_size(length)))
    body = json.dumps(description.resource(envelope.to_metadata())).encode()
    answer = call.ask(method="POST", target=insert_target(call.route.bucket, query), headers=headers, body=body)
    if not 200 <= answer.status < 300:
        raise Declined(answer)
    return answer


def session_target(answer: Answer) -> str:
    """`/path?query` of the session that an answer names. Raises Refusal (502) if it names none."""
    url = urlsplit(answer.headers.get("Location"))
    if not url.path.startswith("/") or not url.query:
        raise Refusal(502, "backendError", "The storage service began an upload without an address; try again.")
    return f"{url.path}?{url.query}"


def send_part(call: Call, target: str, headers: Headers, sealed: Iterable[bytes | memoryview], size: int) -> int:
    """Send a part of a session that is not the last; return the number of bytes that the service has.

    Raises Declined, UpstreamUnavailable.
    """
    answer = call.ask(method="PUT", target=target, headers=headers, body=sealed, length=size)
    if answer.status != 308:
        raise Declined(answer)
    try:
        return kept_bytes(answer)
    finally:
        answer.close()


def kept_bytes(answer: Answer) -> int:
    """Read the number of bytes that the service has from a 308. Raises UpstreamUnavailable if it is unclear."""
    text = answer.headers.get("Range")
    first, _, last = text.lower().removeprefix("bytes").lstrip(" =").partition("-")
    if not text:
        return 0
    if first != "0" or not (last.isascii() and last.isdigit()):
        raise UpstreamUnavailable("The storage service did not say how much of the upload it has; try again.")
    return int(last) + 1


def ask_status(call: Call, target: str) -> Answer:
    """Ask for the progress of a session; never ends it. Raises UpstreamUnavailable."""
    headers = identity_headers(call)
    headers.set("Content-Range", "bytes */*")
    return call.ask(method="PUT", target=target, headers=headers)


def cancel(call: Call, target: str) -> None:
    """Cancel a session; the service drops unfinished ones after a week."""
    try:
        call.ask(method="DELETE", target=target, headers=identity_headers(call)).close()
    except UpstreamUnavailable:
        _log.warning("an upload to %s could not be cancelled; the service will drop it", call.route.bucket)


def accepted(answer: Answer) -> Json:
    """The resource in an answer. Raises Declined for an error, UpstreamUnavailable if it is not a complete resource."""
    if not 200 <= answer.status < 300:
        raise Declined(answer)
    try:
        document = json_document(answer.read(_ANSWER_MAX_BYTES))
    except Refusal as error:
        raise UpstreamUnavailable("The storage service's answer to an upload is not JSON; try again.") from error
    finally:
        answer.close()
    return document


def declined(call: Call, error: Declined) -> Response:
    """The service's error for a client of the JSON API."""
    return relayed(error.answer, call.request)


def explained(error: Declined) -> Refusal:
    """The service's error for a client of the XML API."""
    answer = error.answer
    codes = {401: "AuthenticationRequired", 403: "AccessDenied", 404: "NoSuchBucket", 429: "SlowDown"}
    code = codes.get(answer.status, "ServiceUnavailable" if answer.status >= 500 else "")
    message = f"The storage service answered {answer.status} to the upload."
    try:
        said = json_document(answer.read(_ANSWER_MAX_BYTES)).get("error")
        if isinstance(said, dict) and isinstance(said.get("message"), str):
            message = said["message"]
    except (Refusal, UpstreamUnavailable):
        pass
    finally:
        answer.close()
    return Refusal(answer.status if answer.status >= 400 else 502, "backendError", message, code=code)
