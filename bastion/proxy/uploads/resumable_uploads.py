"""Requests of resumable uploads: begin, chunks, status, end.

A client's chunks end anywhere, segments do not: full segments stream to the service, and the tail waits in memory for
the next chunk. The client's session is one of the service's. A session that this proxy does not know could lead into a
mapped bucket, and is refused.

If the connection to the service breaks, the request fails, and the next one first asks what the service has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bastion.net.http1 import Body, Headers, Response
from bastion.net.http1.messages import PIECE_BYTES
from bastion.proxy.calls import Call, relayed
from bastion.proxy.memory import Gathering
from bastion.proxy.routes import Action, route
from bastion.proxy.sealed.sealed_stream import Plaintext, SealedStream
from bastion.proxy.sealed.segments import (
    SEGMENT_BYTES,
    plain_capacity,
    plain_offset,
    sealed_offset,
    sealed_size,
    segment_of,
)
from bastion.proxy.service.targets import requeried
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.proxy.uploads.resumables import Session, Slot, Spoiled
from bastion.proxy.uploads.service_sessions import (
    Declined,
    Json,
    accepted,
    ask_status,
    begin_session,
    cancel,
    declined,
    forwarded_headers,
    kept_bytes,
    send_part,
    session_target,
)
from bastion.proxy.uploads.stored import Sealed, answered, current, finished, shown
from bastion.proxy.uploads.storing import LEAST_SEGMENTS, PIECE_SEGMENTS, new_envelope
from bastion.proxy.uploads.upload_description import UNFORWARDED_PARAMETERS, Description, check_size, refuse_packed
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire.declared_sums import both_declared, declared_in_headers
from bastion.storage_wire.query import Query, natural_number
from bastion.storage_wire.ranges import ChunkRange, chunk_range
from bastion.storage_wire.refusals import Refusal, invalid
from bastion.storage_wire.unfinished import incomplete

# The service's statuses for an upload that no longer exists.
_GONE = (404, 410)


def begin(call: Call, description: Description) -> Response:
    """Begin an upload in a mapped place.

    Raises KmsUnavailable, KmsRefused, or Refusal (503: it cannot be recorded) if nothing was started;
    UpstreamUnavailable.
    """
    length = call.request.headers.get("X-Upload-Content-Length")
    total = natural_number("X-Upload-Content-Length", length) if length else None
    check_size(total)
    refuse_packed(call.request.headers)
    envelope, key = new_envelope(call, description, total)
    query = requeried(call.request.query, without=UNFORWARDED_PARAMETERS, added={})
    try:
        answer = begin_session(call, description, envelope, query, total)
    except Declined as error:
        return declined(call, error)
    beginning = Beginning(
        bucket=call.route.bucket,
        name=description.name,
        envelope=envelope,
        declared=description.declared,
        total=total,
        fields=call.query.get("fields"),
        process=call.parts.siblings.own,
    )
    return begun(call, answer, beginning, key)


def begun(call: Call, answer: Answer, beginning: Beginning, key: bytes | None) -> Response:
    """Record an upload, and return the service's answer to its beginning. `key` is None if its bytes pass through."""
    if 200 <= answer.status < 300:
        try:
            target = session_target(answer)
            upload_id = _upload_id(call, target)
        except Refusal:
            answer.close()
            raise
        try:
            call.parts.resumables.begin(upload_id, beginning, key)
        except Refusal:
            answer.close()
            cancel(call, target)
            raise
        response = relayed(answer, call.request)
        # The client's next requests must come through the proxy, whatever address the service gives.
        scheme = "https" if call.request.secure else "http"
        response.headers.set("Location", f"{scheme}://{call.request.authority}{target}")
        return response
    return relayed(answer, call.request)


def _upload_id(call: Call, target: str) -> str:
    """The new upload's name. Raises Refusal (502) if it has none, or its address is not in this bucket."""
    path, _, raw = target.partition("?")
    query = Query(raw)
    found = route("PUT", call.request.authority, path, query, Headers())
    names = query.all("upload_id")
    if (found.action, found.bucket) != (Action.UPLOAD, call.route.bucket) or len(names) != 1 or not names[0]:
        raise Refusal(502, "backendError", "The storage service began an upload at an unexpected address; try again.")
    return names[0]


def proceed(call: Call) -> Response:
    """Answer a request that names an upload.

    Raises:
        KmsUnavailable, KmsRefused, EnvelopeBroken: The object's key is unavailable.
        UpstreamUnavailable: There was no answer; the upload may continue.
        Refusal: The request is invalid.
    """
    if len(call.query.all("upload_id")) != 1:
        raise invalid("The query names several uploads; name one.")
    process = call.parts.resumables.process_of(call.query.get("upload_id"))
    sibling = None if process is None else call.parts.siblings.having(process)
    if sibling is not None:
        return call.pass_on(sibling)

    def key_of(beginning: Beginning) -> bytes:
        if beginning.envelope is None:
            raise AssertionError("an unsealed upload has no key")
        return call.parts.envelopes.open(beginning.envelope, beginning.bucket, beginning.name)

    with call.parts.resumables.hold(call.route.bucket, call.query.get("upload_id"), process, key_of) as slot:
        if slot.outcome is not None:
            _drain(call.request.body)
            return answered(slot.outcome, call.query.get("fields") or slot.fields)
        if call.request.method == "DELETE":
            slot.forget()
            return call.pass_on_alone()
        if slot.session is None:
            return _unsealed(call, slot)
        return _SealedRequest(call, slot, slot.session).answer()


def _unsealed(call: Call, slot: Slot) -> Response:
    """Answer a request of an upload that passes through, or is unknown."""
    if slot.file is not None and call.parts.encrypt:
        beginning = slot.file.beginning
        if call.parts.mapping.key_for(beginning.bucket, beginning.name) is not None:
            slot.forget()
            raise _unknown()
    if slot.file is not None or not call.parts.encrypt:
        passed = call.pass_on()
        if passed.status in (200, 201):
            slot.forget()
        return passed
    # Keep our record until the object exists: a client that missed the answer may ask another process again.
    answer = ask_status(call, _target(call))
    if 200 <= answer.status < 300:
        resource = shown(call, current(call, accepted(answer)), None)
        _drain(call.request.body)
        return answered(resource, call.query.get("fields"))
    answer.close()
    raise _unknown()


def _unknown() -> Refusal:
    return Refusal(
        410,
        "gone",
        "The encrypting proxy does not know this upload: it was started without the proxy or before the bucket was "
        "mapped, or its record was lost. Start a new upload.",
    )


class _SealedRequest:
    """One request of a sealed upload."""

    def __init__(self, call: Call, slot: Slot, session: Session) -> None:
        self._call = call
        self._slot = slot
        self._session = session
        self._target = _target(call)
        self._declared = both_declared(session.declared, declared_in_headers(call.request.headers))

    def answer(self) -> Response:
        try:
            return self._answered()
        except Spoiled:
            self._slot.forget()
            cancel(self._call, self._target)
            raise
        except Declined as error:
            if error.answer.status in _GONE:
                self._slot.forget()
            if error.answer.status == 308:
                error.answer.close()
                raise _not_all() from error
            return declined(self._call, error)

    def _answered(self) -> Response:
        refuse_packed(self._call.request.headers)
        session, body = self._session, self._call.request.body
        if not session.settled and (resource := self._settled()) is not None:
            _drain(body)
            return self._finished(resource, md5=session.declared.md5)
        header = self._call.request.headers.get("Content-Range")
        chunk = chunk_range(header)
        if chunk.start is None:
            _drain(body)
            if chunk.total is None or chunk.total != session.received:
                return incomplete(session.received)
            self._check_total(chunk.total)
            return self._last(Plaintext([session.tail]), chunk.total)
        return self._take(chunk, whole=not header)

    def _settled(self) -> Json | None:
        """Ask what the service has; return the resource if the object exists."""
        answer = ask_status(self._call, self._target)
        if answer.status != 308:
            return accepted(answer)
        try:
            self._session.settle(kept_bytes(answer) // SEGMENT_BYTES)
        finally:
            answer.close()
        return None

    def _take(self, chunk: ChunkRange, *, whole: bool) -> Response:
        session, body = self._session, self._call.request.body
        start = chunk.start or 0
        length = chunk.length if body.length is None else body.length
        if None not in (chunk.length, body.length) and chunk.length != body.length:
            raise invalid(
                f"Invalid request. There were {body.length} byte(s) in the request body. There should have been "
                f"{chunk.length} byte(s) (starting at offset {start}) according to the Content-Range header."
            )
        if start > session.received:
            raise invalid(
                f"Invalid request. According to the Content-Range header, the upload offset is {start} byte(s), which "
                f"exceeds already uploaded size of {session.received} byte(s)."
            )
        total = length if whole else chunk.total
        self._check_total(total)
        end = None if length is None else start + length
        skipped = _skip(body, session.received - start)
        left = None if length is None else max(0, length - skipped)
        plaintext = Plaintext([session.tail], body=body, length=left)
        if end is None:
            response = self._unmeasured(plaintext, last=whole)
        elif whole or end == chunk.total:
            response = self._last(plaintext, end)
        else:
            response = self._chunk(plaintext, end)
        _drain(body)
        return response

    def _check_total(self, total: int | None) -> None:
        session = self._session
        if total is None:
            return
        check_size(total)
        if session.total not in (None, total):
            raise invalid(f"The upload was started for {session.total} byte(s), not for {total}.")
        if total < session.received:
            raise invalid(f"{session.received} byte(s) were already received, more than the total of {total}.")
        session.total = total

    def _chunk(self, plaintext: Plaintext, end: int) -> Response:
        """Take bytes up to an offset that is not the end."""
        session = self._session
        if session.total is not None and end > session.total:
            raise invalid(f"The chunk ends at {end}, beyond the {session.total} byte(s) announced for the upload.")
        if end <= session.received:
            return incomplete(session.received)
        # The segment of the chunk's last byte stays here: it may be incomplete, or the last one.
        count = segment_of(end - 1) - session.edge.index
        if count:
            stream = session.stream()
            self._send(stream, self._segments(stream, plaintext, count), count * SEGMENT_BYTES)
        session.tail = _exactly(plaintext, end - session.received + len(session.tail))
        return incomplete(session.received)

    def _segments(self, stream: SealedStream, plaintext: Plaintext, count: int) -> Iterator[memoryview]:
        for index in range(stream.edge.index, stream.edge.index + count):
            if stream.read(plaintext) < plain_capacity(index):
                raise _too_few()
            yield self._session.note(stream, stream.seal())

    def _send(self, stream: SealedStream, sealed: Iterable[bytes | memoryview], size: int) -> None:
        """Send full segments; none is the last."""
        session = self._session
        offset = sealed_offset(session.edge.index)
        total = "*" if session.total is None else str(sealed_size(session.total))
        session.settled = False
        if send_part(self._call, self._target, self._headers(offset, size, total), sealed, size) != offset + size:
            raise _not_all()
        session.advance(stream)

    def _last(self, plaintext: Plaintext, total: int) -> Response:
        """Take the remaining bytes; then the object exists."""
        self._check_end(total)
        self._watch_md5()
        stream = self._session.stream()
        return self._send_last(self._rest(stream, plaintext, total), total)

    def _rest(self, stream: SealedStream, plaintext: Plaintext, total: int) -> Iterator[memoryview]:
        while True:
            stream.read(plaintext)
            if plaintext.ended:
                if stream.plain_size + len(stream.plain) < total:
                    raise _too_few()
                yield self._seal_last(stream)
                return
            yield self._session.note(stream, stream.seal())

    def _unmeasured(self, plaintext: Plaintext, *, last: bool) -> Response:
        """Take an unknown number of bytes."""
        if last:
            self._watch_md5()
        with Gathering(self._call.parts.memory, most=PIECE_SEGMENTS, least=LEAST_SEGMENTS) as gathering:
            while True:
                response = self._next_piece(gathering, plaintext, last=last)
                if response is not None:
                    return response
                gathering.clear()

    def _next_piece(self, gathering: Gathering, plaintext: Plaintext, *, last: bool) -> Response | None:
        """Gather and send; None if more follows."""
        session = self._session
        stream = session.stream()
        ended = False
        while not gathering.full:
            stream.read(plaintext)
            ended = plaintext.ended
            if ended:
                break
            gathering.add(session.note(stream, stream.seal()))
        if ended and last:
            size = stream.plain_size + len(stream.plain)
            self._check_end(size)
            if session.total not in (None, size):
                raise invalid(f"The upload was started for {session.total} byte(s); a different number arrived.")
            gathering.add(self._seal_last(stream))
            return self._send_last(gathering.segments, stream.plain_size)
        if gathering.size:
            self._send(stream, gathering.segments, gathering.size)
        if not ended:
            return None
        session.tail = bytes(stream.plain)
        return incomplete(session.received)

    def _check_end(self, total: int) -> None:
        """Raise Spoiled (410) if no byte is left for the last segment at `total` plaintext bytes.

        An earlier process that had more bytes has then sent the segment before it, not sealed as the last.
        """
        index = self._session.edge.index
        if index and total <= plain_offset(index):
            raise Spoiled(
                410,
                "gone",
                "The upload cannot end here: the proxy restarted and lost its last bytes; start a new upload.",
            )

    def _watch_md5(self) -> None:
        if self._declared.md5 is not None and not self._session.watch_md5():
            raise invalid(
                "The encrypting proxy can compare an md5 only if it is declared when the upload begins, or with the "
                "first chunk; declare the crc32c instead."
            )

    def _seal_last(self, stream: SealedStream) -> memoryview:
        try:
            return self._session.note(stream, stream.seal_last(self._declared))
        except Spoiled:
            raise
        except Refusal as error:
            if error.code != "BadDigest":
                raise
            raise Spoiled(error.status, error.reason, error.message, code=error.code) from error

    def _send_last(self, sealed: Iterable[bytes | memoryview], total: int) -> Response:
        session = self._session
        offset = sealed_offset(session.edge.index)
        size = sealed_size(total) - offset
        session.settled, session.total = False, total
        headers = self._headers(offset, size, str(sealed_size(total)))
        answer = self._call.ask(method="PUT", target=self._target, headers=headers, body=sealed, length=size)
        return self._finished(accepted(answer), md5=self._declared.md5)

    def _finished(self, resource: Json, *, md5: bytes | None) -> Response:
        """Finish after the service made the object; `md5` is what the plaintext was compared with."""
        session, end = self._session, self._session.end
        if end is None:
            raise Spoiled(410, "gone", "Another request ended the upload; start a new upload.")
        sealed = Sealed(envelope=session.envelope, key=session.key, edge=end.edge, plain_size=end.end)
        try:
            outcome = finished(self._call, resource, sealed, md5=md5)
        except Refusal:
            self._slot.forget()
            raise
        self._slot.end(outcome)
        return answered(outcome, self._call.query.get("fields") or self._slot.fields)

    def _headers(self, offset: int, size: int, total: str) -> Headers:
        headers = forwarded_headers(self._call)
        headers.set("Content-Range", f"bytes {offset}-{offset + size - 1}/{total}")
        return headers


def _target(call: Call) -> str:
    return f"{call.request.path}?{requeried(call.request.query, without=UNFORWARDED_PARAMETERS, added={})}"


def _skip(body: Body, size: int) -> int:
    """Drop up to `size` bytes of a body; return how many."""
    skipped = 0
    while skipped < size and (piece := body.receive(min(PIECE_BYTES, size - skipped))):
        skipped += len(piece)
    return skipped


def _exactly(plaintext: Plaintext, size: int) -> bytes:
    plain = plaintext.take(size)
    if len(plain) < size:
        raise _too_few()
    return plain


def _too_few() -> Refusal:
    return invalid("The request has fewer bytes than its Content-Range header says.")


def _not_all() -> UpstreamUnavailable:
    return UpstreamUnavailable("The storage service did not store all bytes; send the rest again.")


def _drain(body: Body) -> None:
    for _ in body.pieces():
        pass
