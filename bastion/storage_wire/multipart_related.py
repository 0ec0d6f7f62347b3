"""Multipart uploads: a small JSON part, then the object's bytes, which are never in memory as a whole.

Real clients end lines with CRLF or LF; the first line of the body decides.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bastion.net.http1 import Body
from bastion.storage_wire.documents import json_document
from bastion.storage_wire.refusals import invalid

_HEAD_MAX_BYTES = 1024 * 1024
_HEADER_BYTES = 16 * 1024
_PIECE_BYTES = 256 * 1024
# Marks the last boundary.
_CLOSING = b"--"
_QUOTES = ('"', "'")


def boundary_of(content_type: str) -> bytes:
    """Return the boundary in a `multipart/...` content type; raises Refusal (400).

    It may be bare, or in double or single quotes. No standard allows single quotes, but apitools (gsutil, `gcloud
    storage`) sends them, and Cloud Storage accepts them.
    """
    _, *options = content_type.split(";")
    for option in options:
        name, _, value = option.strip().partition("=")
        if name.strip().lower() == "boundary":
            value = value.strip()
            if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
                value = value[1:-1]
            if value:
                return value.encode("latin-1")
    raise invalid("The Content-Type of a multipart body must name its boundary.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedFrame:
    """The bytes around an object's own in a `multipart/related` body that is sent."""

    content_type: str  # for the request's header
    head: bytes  # the resource and the second part's header, before the bytes
    tail: bytes  # the closing boundary, after the bytes


def related_frame(document: Mapping[str, Any], content_type: str, *, boundary: str = "") -> RelatedFrame:
    """Frame an object's bytes; `document` is its resource.

    `content_type` is a header value; empty: not sent. `boundary` must not occur in the bytes; default: a random one.
    """
    boundary = boundary or f"bastion-{secrets.token_hex(20)}"
    second = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(document)}\r\n"
        f"--{boundary}\r\n{second}\r\n"
    )
    return RelatedFrame(
        content_type=f"multipart/related; boundary={boundary}",
        head=head.encode("latin-1"),
        tail=f"\r\n--{boundary}--\r\n".encode(),
    )


class MultipartRelated:
    """Both parts of an upload's body; the constructor reads up to the object's bytes and may raise Refusal (400).

    Attributes:
        document: The JSON of the first part.
        content_type: Of the second part; may be empty.
    """

    def __init__(self, body: Body, boundary: bytes) -> None:
        self._body = body
        self._buffer = b""
        marker = b"--" + boundary
        self._until(marker)
        self._newline = b"\r\n" if self._line().endswith(b"\r") else b"\n"
        self._delimiter = self._newline + marker
        self._part_headers()
        self.document = json_document(self._until(self._delimiter))
        self._line()
        self.content_type = self._part_headers().get(b"content-type", b"").decode("latin-1")

    def _more(self) -> None:
        piece = self._body.receive(_PIECE_BYTES)
        if not piece:
            raise invalid("The multipart body ends before its closing boundary.")
        if len(self._buffer) > _HEAD_MAX_BYTES:
            raise invalid(f"The metadata part is larger than {_HEAD_MAX_BYTES} bytes.")
        self._buffer += piece

    def _until(self, mark: bytes) -> bytes:
        """Return what precedes a mark; the buffer continues after it."""
        searched = 0
        while (at := self._buffer.find(mark, searched)) < 0:
            searched = max(0, len(self._buffer) - len(mark) + 1)
            self._more()
        before, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
        return before

    def _line(self) -> bytes:
        return self._until(b"\n")

    def _part_headers(self) -> dict[bytes, bytes]:
        headers: dict[bytes, bytes] = {}
        left = _HEADER_BYTES
        while line := self._line().strip():
            left -= len(line)
            if left < 0:
                raise invalid(f"The headers of a part are longer than {_HEADER_BYTES} bytes.")
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        return headers

    def pieces(self) -> Iterator[bytes]:
        """Yield the object's bytes once.

        Raises Refusal (400) if the closing boundary is missing or different; then nothing may be stored.
        """
        delimiter = self._delimiter
        kept = len(delimiter) - 1
        buffer = self._buffer
        while (at := buffer.find(delimiter)) < 0:
            if len(buffer) > kept:
                yield buffer[:-kept]
                buffer = buffer[-kept:]
            piece = self._body.receive(_PIECE_BYTES)
            if not piece:
                raise invalid("The multipart body ends before its closing boundary.")
            buffer += piece
        closing = buffer[at + len(delimiter) :]
        while len(closing) < len(_CLOSING) and (piece := self._body.receive(_PIECE_BYTES)):
            closing += piece
        if not closing.startswith(_CLOSING):
            # Taking it for the end would truncate the object.
            raise invalid("The body must have exactly two parts.")
        if at:
            yield buffer[:at]
        # Bytes after the closing boundary are meaningless, but must be read.
        for _ in self._body.pieces():
            pass
