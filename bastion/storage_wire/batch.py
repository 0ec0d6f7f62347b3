"""Batches of the JSON API: `POST /batch/storage/v1`, a `multipart/mixed` of HTTP requests.

Calls are independent, run in order, and have a status each. Real clients end lines with CRLF, LF, or both in one body.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from bastion.net.http1 import BadRequest, BytesBody, Headers, Request, Response
from bastion.net.http1.head import BLANKS, split_target
from bastion.storage_wire.multipart_related import boundary_of
from bastion.storage_wire.refusals import Refusal, as_json, invalid, not_allowed

PATHS = ("/batch/storage/v1", "/batch")
# The documentation says 100; google-cloud-storage sends up to 1000, and the service accepts them.
_CALLS_MAX = 1000
_BODY_MAX_BYTES = 10 * 1024 * 1024
_HEAD_MAX_BYTES = 64 * 1024
_ANSWERS_MAX_BYTES = 32 * 1024 * 1024
_LENGTH_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """A parsed batch."""

    body: bytes  # as it came
    requests: tuple[tuple[str, Request], ...]  # its calls in order, each with the client's id


def taken_apart(batch: Request) -> Calls:
    """Parse a batch; raises Refusal."""
    if batch.method != "POST":
        raise not_allowed(batch.method, batch.path)
    boundary = boundary_of(batch.headers.get("Content-Type"))
    body = batch.body.read(_BODY_MAX_BYTES + 1)
    if len(body) > _BODY_MAX_BYTES:
        raise Refusal(413, "uploadTooLarge", f"The batch is larger than {_BODY_MAX_BYTES} bytes.")
    parts = _parts(body, boundary)
    if len(parts) > _CALLS_MAX:
        raise invalid(f"The batch has {len(parts)} calls; the maximum is {_CALLS_MAX}.")
    return Calls(body=body, requests=tuple(_read(part, batch) for part in parts))


def answer(batch: Request, single: Callable[[Request], Response]) -> Response:
    """Answer a batch; `single` answers one call. Raises Refusal if the batch cannot be read; then no call was made."""
    return answered(taken_apart(batch), single)


def answered(calls: Calls, single: Callable[[Request], Response]) -> Response:
    """Answer a parsed batch; `single` answers one call."""
    marker = f"batch_{secrets.token_urlsafe(18)}"
    answers: list[bytes] = []
    size = 0
    for content_id, request in calls.requests:
        # A thousand listings would fill the memory; the rest is refused, and can be repeated.
        response = single(request) if size < _ANSWERS_MAX_BYTES else as_json(_too_much())
        answers.append(_written(content_id, response, marker))
        size += len(answers[-1])
    headers = Headers((("Content-Type", f"multipart/mixed; boundary={marker}"),))
    return Response(status=200, headers=headers, body=b"".join([*answers, f"--{marker}--\r\n".encode()]))


def _too_much() -> Refusal:
    return Refusal(503, "backendError", f"The batch's answers are more than {_ANSWERS_MAX_BYTES} bytes; try again.")


def _parts(body: bytes, boundary: bytes) -> list[bytes]:
    _, *parts = body.split(b"--" + boundary)
    if not parts:
        raise invalid("The batch does not contain its boundary.")
    if not parts[-1].startswith(b"--"):
        raise invalid("The batch ends before its closing boundary.")
    return [part.lstrip(b"\r\n") for part in parts[:-1]]


def _read(part: bytes, batch: Request) -> tuple[str, Request]:
    """Return the id of a call, and the call."""
    outer, rest = _headers(part)
    line, _, rest = rest.partition(b"\n")
    parts = line.split()
    if len(parts) < 2:
        raise invalid("A part of the batch is not an HTTP request.")
    inner, data = _headers(rest)
    length = inner.get("Content-Length")
    if length.isascii() and length.isdigit() and len(length) <= _LENGTH_MAX_DIGITS:
        data = data[: int(length)]
    method, target = parts[0].decode("latin-1"), parts[1].decode("latin-1")
    try:
        # Clients send an absolute address or only its path.
        path, query, _ = split_target(target, "")
    except BadRequest as error:
        raise invalid(f"The address {target[:80]!r} in a part of the batch is not valid.") from error
    request = Request(
        method=method,
        target=target,
        path=path,
        query=query,
        headers=inner,
        body=BytesBody(data),
        authority=batch.authority,
        secure=batch.secure,
    )
    return outer.get("Content-ID"), request


def _headers(data: bytes) -> tuple[Headers, bytes]:
    """Parse headers; return them and the bytes after the empty line."""
    headers = Headers()
    position = 0
    while position < len(data):
        end = (data.find(b"\n", position) + 1) or len(data)
        line = data[position:end].decode("latin-1").strip(f"{BLANKS}\n")
        position = end
        if not line:
            break
        if position > _HEAD_MAX_BYTES:
            raise invalid(f"The headers of a part of the batch are longer than {_HEAD_MAX_BYTES} bytes.")
        name, _, value = line.partition(":")
        headers.add(name.strip(BLANKS), value.strip(BLANKS))
    return headers, data[position:]


def _written(content_id: str, response: Response, marker: str) -> bytes:
    body = response.body if isinstance(response.body, bytes) else b""
    if not isinstance(response.body, bytes):
        response.close()
    known = f"Content-ID: <response-{content_id.strip('<>')}>\r\n" if content_id else ""
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "Unknown"
    fields = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
    head = (
        f"--{marker}\r\nContent-Type: application/http\r\n{known}\r\n"
        f"HTTP/1.1 {response.status} {reason}\r\n{fields}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1", "replace") + body + b"\r\n"
