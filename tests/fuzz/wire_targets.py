"""What comes over connections: requests to the proxy and the endpoint, the service's answers, and sealed objects."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable

from bastion.core.errors import EnvelopeBroken, Refused, SealBroken
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.resources import StorageError
from bastion.emulators.gcs.upload_sessions import Session
from bastion.emulators.gcs.xml_documents import read as read_xml
from bastion.net.http1 import BadRequest, BodyTruncated, Disconnect, Headers, Request, Response
from bastion.net.http1.incoming import ChunkedBody, Incoming
from bastion.proxy.sealed.description import parse_url, read_description
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.opening import opened
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.service.intercepted import split_authority
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire import batch, transcoding
from bastion.storage_wire.json_fields import projection
from bastion.storage_wire.multipart_related import MultipartRelated, boundary_of
from bastion.storage_wire.query import Query
from bastion.storage_wire.ranges import chunk_range, read_range
from bastion.storage_wire.refusals import Refusal
from tests.fuzz.http_messages import answer_head, request
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target
from tests.fuzz.wire_seeds import (
    COMPLETE,
    ENDPOINTS,
    HEADER,
    KEY,
    STAGES,
    answers,
    beginnings,
    chunk_seeds,
    envelope_seeds,
    requests,
    sealed,
    session_seeds,
    sidecar_seeds,
)
from tests.support.proxy_stage import body_of

# What a handler's body may raise when its head is already sent, and what a reader of a body may.
_BROKEN_OFF = (BodyTruncated, BadRequest, Disconnect)


def _answer(answer: Callable[[Request], Response], asked: Request) -> None:
    response = answer(asked)
    assert 100 <= response.status < 1000
    body_of(response)
    for name, value in response.headers.items():
        text = f"{name}: {value}"
        assert "\r" not in text and "\n" not in text, f"a header splits the answer: {text!r}"
        text.encode("latin-1")


def _proxy(data: bytes) -> None:
    asked = request(data)
    try:
        split_authority(asked.authority)
    except ValueError as error:  # the listener passes no such request on
        raise BadRequest("no host") from error
    _answer(STAGES.proxy()._proxy, asked)


def _endpoint(data: bytes) -> None:
    asked = request(data)
    _answer(ENDPOINTS.proxy()._endpoint, asked)


_ASKED = (
    ("GET", "/storage/v1/b/vault/o/a"),
    ("GET", "/storage/v1/b/vault/o/a?alt=media"),
    ("GET", "/storage/v1/b/vault/o"),
    ("PATCH", "/storage/v1/b/vault/o/a"),
    ("GET", "/vault/a"),
    ("HEAD", "/vault/a"),
    ("GET", "/storage/v1/b/lake/o/plain"),
    ("POST", "/storage/v1/b/vault/o/a/rewriteTo/b/vault/o/c"),
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=media&name=n"),
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=n"),
    ("PUT", "/vault/n"),
    ("GET", "/storage/v1/b/vault/o?fields=items(name,size)"),
    ("POST", "/storage/v1/b/vault/o/a/copyTo/b/vault/o/c"),
)


def _service(data: bytes) -> None:
    """Every kind of request of a client, answered by the storage service with these bytes."""
    head, body = answer_head(data)
    given = Response(status=head.status, reason=head.reason, headers=Headers(head.headers.items()), body=body)
    for method, target in _ASKED:
        stage = STAGES.proxy()
        stage.upstream.before = lambda asked: given
        body_or_json: object = (
            {"metadata": {"x": "y"}} if method == "PATCH" else b"content" if "upload" in target else b""
        )
        response = stage.ask(method, target, body_or_json)
        assert 100 <= response.status < 1000
        try:
            body_of(response)
        except (*_BROKEN_OFF, UpstreamUnavailable):
            continue


def _chunked(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(data) + 100_000)
        theirs.settimeout(5)
        theirs.sendall(data[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        incoming = Incoming(ours, idle_seconds=5)
        incoming.head(max_bytes=16_384, seconds=5)
        body = ChunkedBody(incoming, trailers_max_bytes=4096)
        assert len(body.read()) <= len(data)


def _multipart(data: bytes) -> None:
    asked = request(data)
    parts = MultipartRelated(asked.body, boundary_of(asked.headers.get("Content-Type")))
    for _ in parts.pieces():
        pass


def _batch(data: bytes) -> None:
    batch.answer(request(data), lambda asked: Response(status=200, body=asked.target.encode("latin-1")))


def _ranges(data: bytes) -> None:
    text = data.decode("latin-1")
    found = read_range(text, 1000)
    assert found is None or (found[0] >= 0 and 0 < found[1] <= 1000 - found[0])
    chunk = chunk_range(text)
    assert chunk.length is None or chunk.length > 0


def _query(data: bytes) -> None:
    query = Query(data.decode("latin-1"))
    for name in ("generation", "maxResults", "ifGenerationMatch"):
        query.number(name)
    projection(query.get("fields"))


def _gzipped(data: bytes) -> None:
    size = 0
    for piece in transcoding.decompressed([data[:1000], data[1000:]]):
        size += len(piece)
        assert len(piece) <= 256 * 1024
        if size > 16 * 1024 * 1024:
            return


def _opened(data: bytes) -> None:
    sealing = Sealing(KEY, HEADER)  # the envelope's, which is checked when it is read
    for _ in opened(io.BufferedReader(io.BytesIO(data)), sealing):  # type: ignore[arg-type]
        pass


def _envelope(data: bytes) -> None:
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise EnvelopeBroken("no metadata")
    envelope = Envelope.from_metadata(found)
    assert envelope is None or Envelope.from_metadata(envelope.to_metadata()) == envelope


def _described(data: bytes) -> None:
    found = read_description(data, called="FILE")
    parse_url(f"gs://{found.bucket}/{found.name}")
    Envelope.from_metadata(found.metadata)


def _sidecar(data: bytes) -> None:
    found = sidecars.decoded(data)
    assert found is None or sidecars.decoded(found.encoded()) == found


def _session(data: bytes) -> None:
    found = Session.decoded(data)
    assert found is None or Session.decoded(found.encoded()) == found


def _beginning(data: bytes) -> None:
    found = Beginning.decoded(data)
    assert found is None or Beginning.decoded(found.encoded()) == found


def _xml(data: bytes) -> None:
    tree = read_xml(data, "CompleteMultipartUpload")
    # Without a document type there are no entities, so nothing grows.
    assert sum(len(element.text or "") for element in tree.iter()) <= len(data)


_REFUSED = (Refusal, BadRequest)
TARGETS = (
    Target(name="proxy-request", parse=_proxy, errors=(*_REFUSED, *_BROKEN_OFF), seeds=requests, form=Form.HTTP),
    Target(name="endpoint-request", parse=_endpoint, errors=(*_REFUSED, *_BROKEN_OFF), seeds=requests, form=Form.HTTP),
    Target(name="service-answer", parse=_service, errors=(), seeds=answers, form=Form.HTTP),
    Target(name="chunked", parse=_chunked, errors=(BadRequest, BodyTruncated), seeds=chunk_seeds, form=Form.LINES),
    Target(
        name="multipart",
        parse=_multipart,
        errors=(*_REFUSED, BodyTruncated),
        seeds=lambda: requests()[1:2],
        form=Form.HTTP,
    ),
    Target(
        name="batch", parse=_batch, errors=(*_REFUSED, BodyTruncated), seeds=lambda: requests()[-4:-3], form=Form.HTTP
    ),
    Target(
        name="ranges",
        parse=_ranges,
        errors=(Refusal,),
        form=Form.LINES,
        seeds=lambda: [b"bytes=0-9", b"bytes=-5", b"bytes 0-262143/*", b"bytes */10", b"bytes 5-9/10"],
    ),
    Target(
        name="query",
        parse=_query,
        errors=(Refusal,),
        form=Form.LINES,
        seeds=lambda: [
            b"generation=1&fields=items(name,metadata/a),nextPageToken&maxResults=%31",
            b"ifGenerationMatch=0",
        ],
    ),
    Target(
        name="gzip-content",
        parse=_gzipped,
        errors=(Disconnect,),
        seeds=lambda: [base64.b64decode("H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA==")],
        form=Form.BYTES,
    ),
    Target(name="sealed-object", parse=_opened, errors=(SealBroken,), seeds=sealed, form=Form.BYTES),
    Target(name="envelope", parse=_envelope, errors=(EnvelopeBroken, ValueError, RecursionError), seeds=envelope_seeds),
    Target(
        name="object-description",
        parse=_described,
        errors=(Refused, EnvelopeBroken),
        seeds=lambda: [json.dumps(STAGES.sealed[0]).encode() for _ in [STAGES.proxy()]],
    ),
    Target(name="sidecar", parse=_sidecar, errors=(StorageError,), seeds=sidecar_seeds),
    Target(name="upload-session", parse=_session, errors=(StorageError,), seeds=session_seeds),
    Target(name="upload-journal", parse=_beginning, errors=(), seeds=beginnings),
    Target(name="xml-request", parse=_xml, errors=(Refusal,), seeds=lambda: [COMPLETE], form=Form.LINES),
)
