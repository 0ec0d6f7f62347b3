"""Object reads of both APIs: which segments to request, and how to check the answer.

An unknown object is described first, under the client's conditions, and then read by generation. A known object is read
at once, on condition that it is unchanged; otherwise it is described. No read is staler than without the proxy.

Invariant: the answer to a range request states only an authenticated total, from the envelope or the last segment (ADR
33).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol, cast

from bastion.core.errors import SealBroken
from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import OF_THE_SERVICE, Call, end_to_end, refused, relayed
from bastion.proxy.objects import Known
from bastion.proxy.reads.entity_tags import shown_tag
from bastion.proxy.reads.plain_bodies import PlainBody
from bastion.proxy.sealed.envelope import PREFIX, EnvelopeBroken
from bastion.proxy.sealed.segments import SealedRange, sealed_range, segment_count
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.proxy.settings import ALLOW_PLAINTEXT
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.ranges import read_range
from bastion.storage_wire.refusals import Refusal
from bastion.storage_wire.transcoding import decompressed, is_decompressed, starts_like_gzip

_TRIES = 3
# The proxy requests ciphertext ranges itself, without transcoding.
_OF_BYTES = frozenset({"accept-encoding", "if-range", "range"})
_TRUE_OF_CIPHERTEXT = OF_THE_SERVICE | {
    "content-encoding",
    "content-md5",
    "content-range",
    "etag",
    "warning",
    "x-goog-hash",
    "x-goog-stored-content-encoding",
    "x-goog-stored-content-length",
}
_OURS = f"x-goog-meta-{PREFIX}"


class Dialect(Protocol):
    """How one API reads."""

    def may_be(self, call: Call, known: Known) -> bool:
        """Whether a known object can satisfy the client's conditions; if in doubt, False: it is described."""

    def describe(self, call: Call) -> Known | Response:
        """Describe the object under the client's conditions, or return the error answer."""

    def media(self, call: Call, known: Known, headers: Headers, *, described: bool) -> Answer:
        """Request the range in `headers` of that generation, under the client's conditions unless just `described`."""


def read(call: Call, dialect: Dialect) -> Response:
    """Answer a read of an object's bytes.

    Raises:
        Refusal: 403 for unexpected plaintext, 416 for a range past the end.
        EnvelopeBroken, SealBroken, KmsUnavailable, KmsRefused, UpstreamUnavailable: It cannot be read.
    """
    objects = call.parts.objects
    known = objects.get(call.route.bucket, call.route.name)
    if known is not None and dialect.may_be(call, known):
        try:
            response = _read(call, dialect, known, described=False)
        except (Refusal, EnvelopeBroken, SealBroken):
            # The remembered state may be outdated.
            response = None
        if response is not None:
            return response
        objects.forget(known.bucket, known.name)
    for _ in range(_TRIES):
        found = dialect.describe(call)
        if isinstance(found, Response):
            return found
        response = _read(call, dialect, objects.remember(found), described=True)
        if response is not None:
            return response
    raise UpstreamUnavailable("the object keeps changing; try again")


def _read(call: Call, dialect: Dialect, known: Known, *, described: bool) -> Response | None:
    """The answer; None if the object has changed."""
    if known.envelope is None:
        check_plaintext(call, known)
        answer = dialect.media(call, known, end_to_end(call.request.headers), described=described)
        if _is_gone(answer, known):
            answer.close()
            return None
        return relayed(answer, call.request)
    known = call.parts.objects.opened(known, call.parts.envelopes)
    assert known.envelope is not None
    headers = call.request.headers
    unpacked = is_decompressed(known.envelope.content_encoding, known.cache_control, headers)
    # HEAD ignores ranges.
    whole = unpacked or "if-range" in headers or call.request.method == "HEAD"
    text = "" if whole else headers.get("range")
    if not known.is_sized and _states_total_first(text, known.plain_bytes):
        seen = _see_end(call, dialect, known, described=described)
        if not isinstance(seen, Known):
            return seen
    asked = read_range(text, known.plain_bytes)
    start, length = asked or (0, known.plain_bytes)
    wanted = sealed_range(start, length, known.plain_bytes)
    answer = dialect.media(call, known, _asking(call, known, wanted), described=described)
    if _is_gone(answer, known):
        answer.close()
        return None
    if answer.status not in (200, 206):
        return refused(answer, call.request)
    shown = shown_headers(answer.headers, known)
    shown.set("Content-Length", str(length))
    if asked is not None:
        shown.add("Content-Range", f"bytes {start}-{start + length - 1}/{known.plain_bytes}")
    body = _body(call, answer, known, wanted, length)
    if unpacked:
        return _unpacked(shown, body)
    return Response(status=200 if asked is None else 206, headers=shown, body=body)


def _states_total_first(text: str, plain: int) -> bool:
    """Whether an answer would state the total before the last segment is authenticated."""
    try:
        asked = read_range(text, plain)
    except Refusal:
        return True  # it states the total, too
    return asked is not None and sealed_range(*asked, plain).first < segment_count(plain) - 1


def _see_end(call: Call, dialect: Dialect, known: Known, *, described: bool) -> Known | Response | None:
    """Read and authenticate the last segment, which a truncated object cannot have.

    Returns the object with `end_seen`; an error answer of the service; None if the object has changed.
    """
    length = min(1, known.plain_bytes)
    wanted = sealed_range(known.plain_bytes - length, length, known.plain_bytes)
    answer = dialect.media(call, known, _asking(call, known, wanted), described=described)
    if _is_gone(answer, known):
        answer.close()
        return None
    if answer.status not in (200, 206):
        return refused(answer, call.request)
    try:
        _check_brought(answer, known, wanted)
        _plain_body(call, answer, known, wanted, length).close()
    finally:
        answer.close()
    return replace(known, end_seen=True)


def check_plaintext(call: Call, known: Known) -> None:
    """Refuse (403) an unencrypted object, unless plaintext is allowed."""
    if call.parts.encrypt and not call.parts.allow_plaintext:
        raise Refusal(
            403,
            "forbidden",
            f"{known.name!r} in {known.bucket} is not encrypted, but must be: it was stored without the "
            f"proxy, and anyone may have written it. Set {ALLOW_PLAINTEXT}=true to read it anyway.",
            code="AccessDenied",
        )


def _asking(call: Call, known: Known, wanted: SealedRange) -> Headers:
    headers = end_to_end(call.request.headers, without=_OF_BYTES)
    # Accepting gzip yields the stored bytes; without it the service may decompress them.
    headers.add("Accept-Encoding", "gzip")
    if wanted.length != known.stored_bytes:
        headers.add("Range", f"bytes={wanted.start}-{wanted.start + wanted.length - 1}")
    return headers


def _is_gone(answer: Answer, known: Known) -> bool:
    """Whether an answer says that the object has changed."""
    if answer.status in (404, 412):
        return True
    if answer.status not in (200, 206):
        return False
    metageneration = answer.headers.get("x-goog-metageneration", str(known.metageneration))
    return (answer.headers.get("x-goog-generation"), metageneration) != (
        str(known.generation),
        str(known.metageneration),
    )


def _body(call: Call, answer: Answer, known: Known, wanted: SealedRange, length: int) -> Iterable[bytes]:
    if call.request.method == "HEAD":
        answer.close()
        return ()
    try:
        _check_brought(answer, known, wanted)
        body = _plain_body(call, answer, known, wanted, length)
    except (SealBroken, UpstreamUnavailable):
        answer.close()
        raise
    # Views of bytes are sent like bytes.
    return cast("Iterable[bytes]", body)


def _plain_body(call: Call, answer: Answer, known: Known, wanted: SealedRange, length: int) -> PlainBody:
    assert known.opened is not None

    def remember() -> None:
        call.parts.objects.remember(replace(known, end_seen=True))

    return PlainBody(
        answer,
        known.opened.sealing,
        wanted,
        length=length,
        plain=known.plain_bytes,
        memory=call.parts.memory,
        on_end=remember,
    )


def _unpacked(shown: Headers, body: Iterable[bytes]) -> Response:
    """Decompress a gzipped object for a client that does not accept gzip, as the service does."""
    shown.remove("Content-Encoding")
    if isinstance(body, PlainBody):
        if not starts_like_gzip(body.beginning):
            return Response(status=200, headers=shown, body=body)
        shown.add("Warning", "214 UploadServer gunzipped")
    shown.remove("Content-Length")
    return Response(status=200, headers=shown, body=_Unpacked(body))


class _Unpacked:
    def __init__(self, body: Iterable[bytes]) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return decompressed(self._body)

    def close(self) -> None:
        if isinstance(self._body, PlainBody):
            self._body.close()


def _check_brought(answer: Answer, known: Known, wanted: SealedRange) -> None:
    """Raise UpstreamUnavailable unless the answer brings the requested bytes."""
    if wanted.length == known.stored_bytes:
        # Content-Range has no meaning in a 200 (RFC 9110, 14.4), but some services send one.
        brought = answer.status == 200
    else:
        content_range = f"bytes {wanted.start}-{wanted.start + wanted.length - 1}/{known.stored_bytes}"
        brought = answer.status == 206 and answer.headers.get("content-range") == content_range
    good = brought and answer.length in (wanted.length, None)
    if not good:
        raise UpstreamUnavailable(
            f"the service answered {answer.status} with {answer.length} bytes where {wanted.length} of "
            f"{known.stored_bytes} were asked for; try again"
        )


def shown_headers(headers: Headers, known: Known) -> Headers:
    """The service's headers as the object's owner sees them, without the length."""
    assert known.envelope is not None
    assert known.opened is not None
    shown = Headers(
        (name, value)
        for name, value in end_to_end(headers, without=_TRUE_OF_CIPHERTEXT).items()
        if not name.lower().startswith(_OURS)
    )
    if tag := headers.get("etag"):
        shown.add("ETag", shown_tag(tag))
    encoding = known.envelope.content_encoding
    if encoding:
        shown.add("Content-Encoding", encoding)
    shown.add("x-goog-stored-content-encoding", encoding or "identity")
    shown.add("x-goog-stored-content-length", str(known.plain_bytes))
    if known.opened.crc32c is not None:
        shown.add("x-goog-hash", f"crc32c={crc32c_text(known.opened.crc32c)}")
    return shown
