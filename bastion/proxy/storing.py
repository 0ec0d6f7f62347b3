"""Stores one object whose plaintext comes in one request, and what every upload ends with.

Layer: proxy. What is small is sealed in memory and goes up in one request with everything that is to be said of it.
What is larger streams through a resumable session of the service: begin, send, and one change of the metadata, because
the plaintext's checksum is known only at the end. Invariants:

* Nothing is asked of the service before the object's key is there, so a key service that is down leaves no trace.
* The object comes into being only from a whole plaintext that is what the client declared.
* What the service says that it stored is compared with what was sent.
"""

from __future__ import annotations

import binascii
import itertools
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from bastion.http1 import Headers, Response
from bastion.proxy.calls import Call, end_to_end, relayed
from bastion.proxy.envelope import Envelope
from bastion.proxy.resources import plain_resource
from bastion.proxy.sealed_stream import Edge, Plaintext, SealedStream, md5_for
from bastion.proxy.sealing import Sealing
from bastion.proxy.segments import SEGMENT_BYTES, sealed_size
from bastion.proxy.targets import insert_target, object_target, requeried
from bastion.proxy.upload_description import (
    UNFORWARDED_HEADERS,
    UNFORWARDED_PARAMETERS,
    Description,
    check_size,
    refuse_packed,
)
from bastion.proxy.upstream import Answer, UpstreamUnavailable
from bastion.storage_api.declared_sums import crc32c_text
from bastion.storage_api.documents import json_document
from bastion.storage_api.json_fields import projected, projection
from bastion.storage_api.refusals import Refusal

_log = logging.getLogger(__name__)

Json = dict[str, Any]

# Plaintext up to here goes up in one request.
SMALL_BYTES = 8 * 1024 * 1024
# Of a plaintext whose size nobody knows, so many segments are sealed (16 MiB) before they are sent.
PIECE_SEGMENTS = 64
_ANSWER_MAX_BYTES = 4 * 1024 * 1024
# What the client is and may; the rest of its headers is about the upload.
_IDENTITY = frozenset(
    (
        *("authorization", "user-agent", "x-goog-api-client", "x-goog-encryption-algorithm", "x-goog-encryption-key"),
        *("x-goog-encryption-key-sha256", "x-goog-request-reason", "x-goog-user-project"),
    )
)


class Declined(Exception):
    """The service said no; nothing was stored.

    Attributes:
        answer: What it said; whoever catches this closes it.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"the service answered {answer.status}")
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """An object that was sealed and sent.

    Attributes:
        envelope: That was stored, without checksums.
        edge: After the last segment.
        plain_size: In bytes.
    """

    envelope: Envelope
    key: bytes = field(repr=False)
    edge: Edge
    plain_size: int


def store(call: Call, description: Description, plaintext: Plaintext, *, length: int | None) -> Json:
    """Stores an object in a mapped place.

    Args:
        call: Its query and headers go on, but for what concerns the plaintext.
        length: Of the plaintext; None: nobody knows.

    Returns:
        Its resource as the client sees it.

    Raises:
        Refusal: 400, the plaintext is not what was declared; 501, it is packed; 502, the service stored something else.
        Declined: the service refused.
        KmsUnavailable, KmsRefused: as the key service did.
        UpstreamUnavailable: it is not known what became of it.
        BodyTruncated, BadRequest: as the client's body did; nothing was stored.
    """
    check_size(length)
    refuse_packed(call.request.headers)
    envelope, key = new_envelope(call, description)
    stream = SealedStream(Sealing(key, envelope.header), md5=md5_for(description.declared), most=length)
    upload = _Upload(call, description, envelope, key, stream)
    sealed = stream.rest(plaintext, description.declared)
    if length is not None and length > SMALL_BYTES:
        return upload.streamed(sealed, length)
    begun: list[bytes] = []
    for segment in sealed:
        begun.append(bytes(segment))
        if stream.plain_size > SMALL_BYTES and not stream.complete:
            return upload.streamed(itertools.chain(begun, sealed), None)
    return upload.inserted(begun)


def new_envelope(call: Call, description: Description) -> tuple[Envelope, bytes]:
    """Envelope and key for an object in a mapped place.

    Raises:
        KmsUnavailable, KmsRefused: as the key service did.
    """
    bucket, name = call.route.bucket, description.name
    kek = call.parts.mapping.key_for(bucket, name)
    if kek is None:
        raise AssertionError("only what lies in a mapped place is sealed")
    envelope, key = call.parts.envelopes.new(kek, bucket, name)
    return replace(envelope, content_encoding=description.content_encoding), key


class _Upload:
    """One object on its way."""

    def __init__(
        self, call: Call, description: Description, envelope: Envelope, key: bytes, stream: SealedStream
    ) -> None:
        self._call = call
        self._description = description
        self._envelope = envelope
        self._key = key
        self._stream = stream

    def inserted(self, sealed: list[bytes]) -> Json:
        """In one request."""
        call, edge = self._call, self._stream.edge
        envelope = call.parts.envelopes.with_sums(self._envelope, self._key, edge.plain_crc32c)
        resource = self._description.resource(envelope.to_metadata())
        resource["crc32c"] = crc32c_text(edge.sealed_crc32c)
        boundary = f"bastion-{secrets.token_hex(20)}"
        head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(resource)}\r\n"
            f"--{boundary}\r\nContent-Type: {self._description.content_type}\r\n\r\n"
        )
        body = [head.encode(), *sealed, f"\r\n--{boundary}--\r\n".encode()]
        length = sum(map(len, body))
        headers = forwarded_headers(call)
        headers.set("Content-Type", f"multipart/related; boundary={boundary}")
        query = requeried(call.request.query, without=UNFORWARDED_PARAMETERS, added={"uploadType": "multipart"})
        target = insert_target(call.route.bucket, query)
        document = accepted(call.ask(method="POST", target=target, headers=headers, body=body, length=length))
        confirm(call, document, edge, self._stream.plain_size)
        return shown(call, document, self._description.declared.md5)

    def streamed(self, sealed: Iterator[bytes | memoryview], length: int | None) -> Json:
        """Through a session."""
        target = self._begin(length)
        ended = False
        try:
            if length is None:
                document = self._send_pieces(target, sealed)
            else:
                document = self._send_whole(target, sealed, sealed_size(length))
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

    def _send_pieces(self, target: str, sealed: Iterator[bytes | memoryview]) -> Json:
        offset = 0
        while True:
            piece = [bytes(segment) for segment in itertools.islice(sealed, PIECE_SEGMENTS)]
            size = sum(map(len, piece))
            total = str(offset + size) if self._stream.complete else "*"
            headers = forwarded_headers(self._call)
            headers.set("Content-Range", f"bytes {offset}-{offset + size - 1}/{total}")
            if self._stream.complete:
                return self._last(target, headers, piece, size)
            offset += size
            if send_part(self._call, target, headers, piece, size) != offset:
                raise UpstreamUnavailable("The storage service did not keep all that was sent to it; try again.")

    def _last(self, target: str, headers: Headers, sealed: Iterable[bytes | memoryview], size: int) -> Json:
        try:
            return accepted(self._call.ask(method="PUT", target=target, headers=headers, body=sealed, length=size))
        except UpstreamUnavailable:
            if not self._stream.complete:
                raise
            # All of it may have arrived, and only the answer was lost.
            return accepted(ask_status(self._call, target))


def forwarded_headers(call: Call) -> Headers:
    """The client's headers for the request that brings the object, without what is about the plaintext."""
    return end_to_end(call.request.headers, without=UNFORWARDED_HEADERS)


def identity_headers(call: Call) -> Headers:
    """Of the client's headers what says who it is: for requests that are the proxy's own."""
    items = call.request.headers.items()
    return Headers((name, value) for name, value in items if name.lower() in _IDENTITY)


def begin_session(call: Call, description: Description, envelope: Envelope, query: str, length: int | None) -> Answer:
    """Begins a resumable session of the service for the sealed bytes; the answer (2xx) is the caller's to close.

    Args:
        query: Raw.
        length: Of the plaintext; None: nobody knows.

    Raises:
        Declined: the service refused.
        UpstreamUnavailable: there was no answer.
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
    """`/path?query` of the session that an answer names.

    Raises:
        Refusal: 502, it names none.
    """
    url = urlsplit(answer.headers.get("Location"))
    if not url.path.startswith("/") or not url.query:
        raise Refusal(502, "backendError", "The storage service began an upload without saying where; try again.")
    return f"{url.path}?{url.query}"


def send_part(call: Call, target: str, headers: Headers, sealed: Iterable[bytes | memoryview], size: int) -> int:
    """Sends a part of a session's bytes that is not the last.

    Returns:
        How many bytes the service has, from the first on.

    Raises:
        Declined: the service refused.
        UpstreamUnavailable: there was no answer.
    """
    answer = call.ask(method="PUT", target=target, headers=headers, body=sealed, length=size)
    if answer.status != 308:
        raise Declined(answer)
    try:
        return kept_bytes(answer)
    finally:
        answer.close()


def kept_bytes(answer: Answer) -> int:
    """Of a 308: how many bytes the service has, from the first on.

    Raises:
        UpstreamUnavailable: it does not say so in words that are understood.
    """
    text = answer.headers.get("Range")
    first, _, last = text.lower().removeprefix("bytes").lstrip(" =").partition("-")
    if not text:
        return 0
    if first != "0" or not (last.isascii() and last.isdigit()):
        raise UpstreamUnavailable("The storage service did not say how much of the upload it has; try again.")
    return int(last) + 1


def ask_status(call: Call, target: str) -> Answer:
    """Asks how far a session is; asking never ends one.

    Raises:
        UpstreamUnavailable: there was no answer.
    """
    headers = identity_headers(call)
    headers.set("Content-Range", "bytes */*")
    return call.ask(method="PUT", target=target, headers=headers)


def cancel(call: Call, target: str) -> None:
    """Ends a session so that nothing becomes of it; the service forgets what nobody ends within a week."""
    try:
        call.ask(method="DELETE", target=target, headers=identity_headers(call)).close()
    except UpstreamUnavailable:
        _log.warning("an upload to %s could not be cancelled; the service will forget it", call.route.bucket)


def accepted(answer: Answer) -> Json:
    """The resource in an answer.

    Raises:
        Declined: the answer is no success.
        UpstreamUnavailable: it broke off, or is no resource.
    """
    if not 200 <= answer.status < 300:
        raise Declined(answer)
    try:
        document = json_document(answer.read(_ANSWER_MAX_BYTES))
    except Refusal as error:
        raise UpstreamUnavailable("The storage service's answer to an upload is not JSON.") from error
    finally:
        answer.close()
    return document


def confirm(call: Call, resource: Mapping[str, Any], edge: Edge, plain_size: int) -> None:
    """Holds what the service stored against what was sent; what differs is deleted.

    Args:
        edge: After the last segment.

    Raises:
        Refusal: 502, the service stored something else.
    """
    stored = (str(resource.get("size")), resource.get("crc32c"))
    if stored == (str(sealed_size(plain_size)), crc32c_text(edge.sealed_crc32c)):
        return
    bucket, name, generation = call.route.bucket, str(resource.get("name")), str(resource.get("generation"))
    _log.error("the service stored other bytes of %s/%s than were sent; they are deleted", bucket, name)
    deleted = False
    if generation.isdecimal() and resource.get("name"):
        target = object_target(bucket, name, call.request.query, {"generation": generation})
        try:
            answer = call.ask(method="DELETE", target=target, headers=identity_headers(call))
            deleted = answer.status in (200, 204, 404)
            answer.close()
        except UpstreamUnavailable:
            pass
    raise Refusal(
        502,
        "backendError",
        "The storage service stored other bytes than were sent. "
        + ("They were deleted; upload the object again." if deleted else "They could not be deleted; upload it again."),
    )


def finished(call: Call, resource: Json, sealed: Sealed, *, md5: bytes | None) -> Json:
    """The end of an upload through a session: compares, and adds the plaintext's checksum to the metadata.

    That needs the right to change objects, which a client that may only create them lacks. The object is whole
    and readable without it, so the upload succeeds all the same; later answers then lack the checksum.

    Args:
        resource: As the service answered.
        md5: That the client declared.

    Returns:
        The resource as the client sees it.

    Raises:
        Refusal: 502, the service stored something else.
    """
    confirm(call, resource, sealed.edge, sealed.plain_size)
    known = sealed.envelope.to_metadata()
    summed = call.parts.envelopes.with_sums(sealed.envelope, sealed.key, sealed.edge.plain_crc32c)
    entries = {name: value for name, value in summed.to_metadata().items() if known.get(name) != value}
    changed = _changed(call, resource, entries)
    if changed is None:
        changed = {**resource, "metadata": {**(resource.get("metadata") or {}), **entries}}
    return shown(call, changed, md5)


def _changed(call: Call, resource: Json, entries: Mapping[str, str]) -> Json | None:
    """The resource with further metadata; None: that could not be."""
    generation = str(resource.get("generation"))
    pins = {
        "generation": generation,
        "ifGenerationMatch": generation,
        "ifMetagenerationMatch": str(resource.get("metageneration")),
    }
    target = object_target(call.route.bucket, str(resource.get("name")), call.request.query, pins)
    headers = identity_headers(call)
    headers.set("Content-Type", "application/json; charset=UTF-8")
    body = json.dumps({"metadata": entries}).encode()
    try:
        return accepted(call.ask(method="PATCH", target=target, headers=headers, body=body))
    except Declined as error:
        error.answer.close()
        said = f"the service answered {error.answer.status}"
    except UpstreamUnavailable as error:
        said = str(error)
    _log.warning("%s is stored without its checksum: %s", call.route.bucket, said)
    return None


def shown(call: Call, resource: Json, md5: bytes | None) -> Json:
    """The resource as the client sees it, with an md5 if the client declared it: then it was compared."""
    document = plain_resource(call.parts, resource)
    if md5 is not None:
        document["md5Hash"] = binascii.b2a_base64(md5, newline=False).decode()
    return document


def answered(resource: Json, fields: str) -> Response:
    """The answer of the JSON API to an upload.

    Args:
        fields: As the client asked for them; empty: all.
    """
    headers = Headers(
        (
            ("Content-Type", "application/json; charset=UTF-8"),
            ("Cache-Control", "no-cache, no-store, max-age=0, must-revalidate"),
        )
    )
    if resource.get("etag"):
        headers.add("ETag", str(resource["etag"]))
    document = projected(resource, projection(fields))
    return Response(status=200, headers=headers, body=json.dumps(document, separators=(",", ":")).encode())


def declined(call: Call, error: Declined) -> Response:
    """What the service said, to a client of the JSON API."""
    return relayed(error.answer, call.request)


def explained(error: Declined) -> Refusal:
    """What the service said, for a client of the XML API."""
    answer = error.answer
    words = {401: "AuthenticationRequired", 403: "AccessDenied", 404: "NoSuchBucket", 429: "SlowDown"}
    code = words.get(answer.status, "ServiceUnavailable" if answer.status >= 500 else "")
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


# A part of a session may end only where the service's steps do; segments are as long as these.
assert SEGMENT_BYTES % (256 * 1024) == 0
