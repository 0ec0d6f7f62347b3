"""Store one object whose plaintext comes in one request.

A small object is sealed in memory and sent in one request. A larger one streams through a resumable session and ends
with a metadata change, because the plaintext's checksum is known only at the end. Invariants:

* The object's key is obtained before the service is asked: an unavailable key service leaves no trace.
* The object is created only from a complete plaintext that matches the client's declaration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from bastion.net.http1 import Headers
from bastion.proxy.calls import Call
from bastion.proxy.memory import Gathering
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.sealed_stream import Plaintext, SealedStream, md5_for
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import sealed_size, segment_count
from bastion.proxy.service.targets import insert_target, requeried
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.proxy.uploads.service_sessions import (
    Json,
    accepted,
    ask_status,
    begin_session,
    cancel,
    forwarded_headers,
    send_part,
    session_target,
)
from bastion.proxy.uploads.stored import Sealed, confirm, described_by, finished, shown
from bastion.proxy.uploads.upload_description import UNFORWARDED_PARAMETERS, Description, check_size, refuse_packed
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.multipart_related import related_frame

# Plaintext up to this size goes in one request.
SMALL_BYTES = 8 * 1024 * 1024
# Segments (16 MiB) to seal before sending a plaintext of unknown size; fewer under load.
PIECE_SEGMENTS = 64
LEAST_SEGMENTS = 4


def store(call: Call, description: Description, plaintext: Plaintext, *, length: int | None) -> Json:
    """Store an object in a mapped place; return its resource as the client sees it.

    `length` is that of the plaintext, None if unknown.

    Raises:
        Refusal: 400 if the plaintext does not match its declaration, 501 if it is compressed, 502 if the service stored
            something else.
        Declined: The service refused.
        KmsUnavailable, KmsRefused: From the key service.
        UpstreamUnavailable: The result is unknown.
        BodyTruncated, BadRequest: From the client's body; nothing was stored.
    """
    check_size(length)
    refuse_packed(call.request.headers)
    envelope, key = new_envelope(call, description, length)
    stream = SealedStream(Sealing(key, envelope.header), md5=md5_for(description.declared), most=length)
    upload = _Upload(call, description, envelope, key, stream)
    sealed = stream.rest(plaintext, description.declared)
    if length is not None and length > SMALL_BYTES:
        return upload.streamed(sealed, length)
    most = PIECE_SEGMENTS if length is None else segment_count(length)
    if length is None and call.request.body.length is not None:
        most = min(most, segment_count(call.request.body.length))
    with Gathering(call.parts.memory, most=most, least=LEAST_SEGMENTS) as gathering:
        if length is not None and gathering.capacity < most:
            gathering.close()
            return upload.streamed(sealed, length)
        _gather(gathering, sealed)
        if stream.complete and stream.plain_size <= SMALL_BYTES:
            return upload.inserted(gathering)
        return upload.sent(gathering, sealed)


def _gather(gathering: Gathering, sealed: Iterator[memoryview]) -> None:
    """Fill the buffers with the next segments, fewer only at the end."""
    for segment in itertools.islice(sealed, gathering.capacity):
        gathering.add(segment)


def new_envelope(call: Call, description: Description, size: int | None) -> tuple[Envelope, bytes]:
    """Make envelope and key for an object in a mapped place; `size` is that of the plaintext, None if unknown.

    Raises KmsUnavailable and KmsRefused.
    """
    bucket, name = call.route.bucket, description.name
    kek = call.parts.mapping.key_for(bucket, name)
    if kek is None:
        raise AssertionError("only objects in a mapped place are sealed")
    envelope, key = call.parts.envelopes.new(kek, bucket, name)
    envelope = replace(envelope, content_encoding=description.content_encoding)
    return envelope if size is None else call.parts.envelopes.with_size(envelope, key, size), key


class _Upload:
    def __init__(
        self, call: Call, description: Description, envelope: Envelope, key: bytes, stream: SealedStream
    ) -> None:
        self._call = call
        self._description = description
        self._envelope = envelope
        self._key = key
        self._stream = stream

    def inserted(self, gathering: Gathering) -> Json:
        """Send everything that was gathered in one request."""
        call, edge = self._call, self._stream.edge
        envelope = described_by(call, self._envelope, self._key, edge.plain_crc32c, self._stream.plain_size)
        resource = self._description.resource(envelope.to_metadata())
        resource["crc32c"] = crc32c_text(edge.sealed_crc32c)
        frame = related_frame(resource, self._description.content_type)
        body: list[bytes | memoryview] = [frame.head, *gathering.segments, frame.tail]
        length = sum(map(len, body))
        headers = forwarded_headers(call)
        headers.set("Content-Type", frame.content_type)
        query = requeried(call.request.query, without=UNFORWARDED_PARAMETERS, added={"uploadType": "multipart"})
        target = insert_target(call.route.bucket, query)
        document = accepted(call.ask(method="POST", target=target, headers=headers, body=body, length=length))
        confirm(call, document, edge, self._stream.plain_size)
        return shown(call, document, self._description.declared.md5)

    def streamed(self, sealed: Iterator[bytes | memoryview], length: int) -> Json:
        """Stream through a session; `length` is that of the plaintext."""
        return self._through(lambda target: self._send_whole(target, sealed, sealed_size(length)), length)

    def sent(self, gathering: Gathering, sealed: Iterator[memoryview]) -> Json:
        """Send through a session, piece by piece: first what was gathered, then `sealed`."""
        return self._through(lambda target: self._send_pieces(target, gathering, sealed), None)

    def _through(self, send: Callable[[str], Json], length: int | None) -> Json:
        target = self._begin(length)
        ended = False
        try:
            document = send(target)
            ended = True
        finally:
            if not ended:
                cancel(self._call, target)
        done = Sealed(
            envelope=self._envelope, key=self._key, edge=self._stream.edge, plain_size=self._stream.plain_size
        )
        return finished(self._call, document, done, md5=self._description.declared.md5)

    def _begin(self, length: int | None) -> str:
        query = requeried(self._call.request.query, without=UNFORWARDED_PARAMETERS, added={"uploadType": "resumable"})
        answer = begin_session(self._call, self._description, self._envelope, query, length)
        try:
            return session_target(answer)
        finally:
            answer.close()

    def _send_whole(self, target: str, sealed: Iterator[bytes | memoryview], size: int) -> Json:
        headers = forwarded_headers(self._call)
        headers.set("Content-Range", f"bytes 0-{size - 1}/{size}")
        return self._last(target, headers, sealed, size)

    def _send_pieces(self, target: str, gathering: Gathering, sealed: Iterator[memoryview]) -> Json:
        offset = 0
        while True:
            piece, size = gathering.segments, gathering.size
            total = str(offset + size) if self._stream.complete else "*"
            headers = forwarded_headers(self._call)
            headers.set("Content-Range", f"bytes {offset}-{offset + size - 1}/{total}")
            if self._stream.complete:
                return self._last(target, headers, piece, size)
            offset += size
            if send_part(self._call, target, headers, piece, size) != offset:
                raise UpstreamUnavailable("The storage service did not store all bytes; try again.")
            gathering.clear()
            _gather(gathering, sealed)

    def _last(self, target: str, headers: Headers, sealed: Iterable[bytes | memoryview], size: int) -> Json:
        try:
            answer = self._call.ask(method="PUT", target=target, headers=headers, body=sealed, length=size)
            return accepted(_ended(answer))
        except UpstreamUnavailable:
            if not self._stream.complete:
                raise
            # It may have arrived; the answer may be lost.
            return accepted(_ended(ask_status(self._call, target)))


def _ended(answer: Answer) -> Answer:
    """Return the answer; raise UpstreamUnavailable if the session expects more."""
    if answer.status == 308:
        answer.close()
        raise UpstreamUnavailable("The storage service did not store all bytes; try again.")
    return answer
