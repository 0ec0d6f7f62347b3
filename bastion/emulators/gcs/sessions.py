"""Requests to a resumable session of both APIs: a chunk, the whole object, status, the end.

The stored part of an unfinished upload is a multiple of 256 KiB, wherever chunks and connections ended: clients and
proxies rely on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bastion.emulators.gcs.resources import NoSuchUpload, ObjectResource
from bastion.emulators.gcs.uploads import Upload, Uploads
from bastion.net.http1 import Body, Request, Response
from bastion.storage_wire.declared_sums import declared_in_headers
from bastion.storage_wire.ranges import ChunkRange, chunk_range
from bastion.storage_wire.refusals import invalid

QUANTUM_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a session: bytes that the client need not send again, and the object once complete."""

    persisted: int
    resource: ObjectResource | None = None


def advance(uploads: Uploads, upload_id: str, request: Request) -> Progress:
    """Process a PUT (or POST) to a session.

    Raises:
        Refusal: 400: the request contradicts itself or leaves a gap.
        StorageError: The session is unknown, a precondition of its beginning fails, or a checksum does not match.
    """
    upload = uploads.find(upload_id)
    resource = upload.resource
    if resource is None:
        try:
            return _advanced(upload, request)
        except NoSuchUpload:
            upload = uploads.find(upload_id)
            resource = upload.resource
            if resource is None:
                raise
    # The client missed the answer, or a concurrent request was faster.
    _drain(request.body)
    return Progress(persisted=upload.persisted, resource=resource)


def _advanced(upload: Upload, request: Request) -> Progress:
    header = request.headers.get("Content-Range")
    chunk = chunk_range(header)
    if chunk.start is None:
        _drain(request.body)
        if chunk.total is None or chunk.total != upload.persisted:
            return Progress(persisted=upload.persisted)
    else:
        if not _receive(upload, chunk, request.body, whole=not header):
            return Progress(persisted=upload.persisted)
    resource = upload.finish(declared_in_headers(request.headers))
    return Progress(persisted=resource.size, resource=resource)


def _receive(upload: Upload, chunk: ChunkRange, body: Body, *, whole: bool) -> bool:
    """Take the bytes of a chunk; return whether the object is complete."""
    start = chunk.start or 0
    length = chunk.length if body.length is None else body.length
    if None not in (chunk.length, body.length) and chunk.length != body.length:
        raise invalid(
            f"Invalid request. There were {body.length} byte(s) in the request body. There should have been "
            f"{chunk.length} byte(s) (starting at offset {start}) according to the Content-Range header."
        )
    persisted = upload.persisted
    if start > persisted:
        raise invalid(
            f"Invalid request. According to the Content-Range header, the upload offset is {start} byte(s), which "
            f"exceeds already uploaded size of {persisted} byte(s)."
        )
    total = length if whole else chunk.total
    if total is not None and total < persisted:
        raise invalid(f"Invalid request. {persisted} byte(s) are already stored, more than the total of {total}.")
    last = whole or (chunk.total is not None and length is not None and start + length == chunk.total)
    # Skip bytes that are already stored, like the service.
    pieces = _part(body.pieces(QUANTUM_BYTES), persisted - start, length)
    upload.append(persisted, _whole_quanta(pieces, persisted, last=last))
    return last and chunk.total in (None, upload.persisted)


def _part(pieces: Iterator[bytes], skipped: int, length: int | None) -> Iterator[bytes]:
    """The bytes from an offset, up to `length` from the beginning; the rest is read and dropped."""
    position = 0
    for piece in pieces:
        first = max(0, skipped - position)
        last = len(piece) if length is None else min(len(piece), length - position)
        position += len(piece)
        if first < last:
            yield piece if (first, last) == (0, len(piece)) else piece[first:last]


def _whole_quanta(pieces: Iterator[bytes], offset: int, *, last: bool) -> Iterator[bytes]:
    """The bytes up to the object's last multiple of 256 KiB; for the last chunk also the rest."""
    held: list[bytes] = []
    position = offset
    for piece in pieces:
        edge = (position + len(piece)) // QUANTUM_BYTES * QUANTUM_BYTES
        if edge <= position:
            held.append(piece)
        else:
            yield from held
            yield piece[: edge - position]
            held = [piece[edge - position :]] if position + len(piece) > edge else []
        position += len(piece)
    if last:
        yield from held


def cancelled() -> Response:
    return Response(status=499, reason="Client Closed Request")


def _drain(body: Body) -> None:
    for _ in body.pieces():
        pass
