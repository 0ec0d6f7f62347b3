"""What comes over connections: requests to the proxy and the endpoint, the service's answers, and sealed objects."""

from __future__ import annotations

import base64
import functools
import io
import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bastion.core.errors import EnvelopeBroken, Refused, SealBroken
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.resources import Attributes, StorageError
from bastion.emulators.gcs.upload_sessions import Session
from bastion.emulators.gcs.xml_documents import read as read_xml
from bastion.net.http1 import BadRequest, BodyTruncated, BytesBody, Disconnect, Headers, Request, Response
from bastion.net.http1.head import AnswerHead, body_length, end_of_head, parse_answer, parse_head, split_target
from bastion.net.http1.incoming import ChunkedBody, Incoming
from bastion.proxy.sealed.description import parse_url, read_description
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.opening import opened
from bastion.proxy.sealed.sealing import Sealing, new_header
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire import batch, transcoding
from bastion.storage_wire.declared_sums import Declared
from bastion.storage_wire.json_fields import projection
from bastion.storage_wire.multipart_related import MultipartRelated, boundary_of
from bastion.storage_wire.query import Query
from bastion.storage_wire.ranges import chunk_range, read_range
from bastion.storage_wire.refusals import Refusal
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target
from tests.support.proxy_stage import HOST, Stage, body_of
from tests.support.sealed_objects import seal

# Of a stage or endpoint, which remember what was written to them.
_LIFE_INPUTS = 400
# What a handler's body may raise when its head is already sent, and what a reader of a body may.
_BROKEN_OFF = (BodyTruncated, BadRequest, Disconnect)


def request(data: bytes) -> Request:
    """The request in a head and its body; raises BadRequest as the server would."""
    end = end_of_head(data, 0)
    end = len(data) if end < 0 else end
    head = parse_head(data[:end])
    path, query, authority = split_target(head.target, head.headers.get("host") or HOST)
    length = body_length(head.headers)
    body = data[end:]
    return Request(
        method=head.method, target=head.target, path=path, query=query, headers=head.headers,
        body=BytesBody(body if length is None else body[:length]), authority=authority, secure=True,
    )  # fmt: skip


def _answer(answer: Callable[[Request], Response], asked: Request) -> None:
    response = answer(asked)
    assert 100 <= response.status < 600
    body_of(response)
    for name, value in response.headers.items():
        text = f"{name}: {value}"
        assert "\r" not in text and "\n" not in text, f"a header splits the answer: {text!r}"
        text.encode("latin-1")


class _Stages:
    """A proxy before an endpoint, made anew after some inputs."""

    def __init__(self) -> None:
        self._left = 0
        self._folder: Path | None = None

    def proxy(self) -> Stage:
        if not self._left:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
            self._left = _LIFE_INPUTS
            self._stage = Stage(self._folder)
            self._stage.put("a", b"text" * 10)
            self._stage.put("big", b"0" * 100_000)
            self._stage.put("plain", b"plain", bucket="lake")
            self.sealed = self._stage.stored("a")
        self._left -= 1
        self._stage.upstream.before = lambda asked: None
        self._stage.upstream.asked.clear()
        self._stage.upstream.answers.clear()
        return self._stage

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder, self._left = None, 0


STAGES = _Stages()
ENDPOINTS = _Stages()


def _proxy(data: bytes) -> None:
    asked = request(data)
    _answer(STAGES.proxy()._proxy, asked)


def _endpoint(data: bytes) -> None:
    asked = request(data)
    _answer(ENDPOINTS.proxy()._endpoint, asked)


_ASKED = (
    ("GET", "/storage/v1/b/vault/o/a"), ("GET", "/storage/v1/b/vault/o/a?alt=media"), ("GET", "/storage/v1/b/vault/o"),
    ("PATCH", "/storage/v1/b/vault/o/a"), ("GET", "/vault/a"), ("HEAD", "/vault/a"), ("GET", "/storage/v1/b/lake/o/plain"),
    ("POST", "/storage/v1/b/vault/o/a/rewriteTo/b/vault/o/c"), ("POST", "/upload/storage/v1/b/vault/o?uploadType=media&name=n"),
    ("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=n"), ("PUT", "/vault/n"),
    ("GET", "/storage/v1/b/vault/o?fields=items(name,size)"), ("POST", "/storage/v1/b/vault/o/a/copyTo/b/vault/o/c"),
)  # fmt: skip


def answer_head(data: bytes) -> tuple[AnswerHead, bytes]:
    """The head of an answer and the rest; bytes without a valid head are the body of a 200."""
    end = end_of_head(data, 0)
    if end >= 0:
        try:
            head = parse_answer(data[:end])
            if head.status >= 200:
                return head, data[end:]
        except BadRequest:
            pass
    return parse_answer(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"), data


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
        assert 100 <= response.status < 600
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


_KEY = bytes(range(32))
_HEADER = new_header(random=bytes)


def _opened(data: bytes) -> None:
    sealing = Sealing(_KEY, _HEADER)  # the envelope's, which is checked when it is read
    for _ in opened(io.BufferedReader(io.BytesIO(data)), sealing):  # type: ignore[arg-type]
        pass


def _sealed() -> Sequence[bytes]:
    return [
        seal(Sealing(_KEY, _HEADER), b"text"),
        seal(Sealing(_KEY, _HEADER), b""),
        seal(Sealing(_KEY, _HEADER), b"0" * 70_000),
    ]


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


# -- seeds ----------------------------------------------------------------------------------------------------------

_JSON = b"Content-Type: application/json\r\n"
_MULTIPART = (
    b'--b\r\nContent-Type: application/json\r\n\r\n{"name": "m", "metadata": {"a": "b"}, "crc32c": "AAAAAA==", '
    b'"contentType": "text/plain"}\r\n--b\r\nContent-Type: text/plain\r\n\r\nbytes\r\n--b--\r\n'
)
_PARTS = (
    b"--b\r\nContent-Type: application/http\r\nContent-ID: <1>\r\n\r\nGET /storage/v1/b/vault/o/a HTTP/1.1\r\n\r\n\r\n"
    b"--b\r\nContent-Type: application/http\r\nContent-ID: <2>\r\n\r\nPATCH /storage/v1/b/lake/o/plain HTTP/1.1\r\n"
    b'Content-Type: application/json\r\nContent-Length: 27\r\n\r\n{"metadata": {"some": "x"}}\r\n--b--\r\n'
)
_COMPLETE = (
    b"<CompleteMultipartUpload xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Part><PartNumber>1</PartNumber>"
    b'<ETag>"a"</ETag></Part></CompleteMultipartUpload>'
)


def _asked(line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n".encode()
    return line + b" HTTP/1.1\r\nHost: storage.googleapis.com\r\n" + headers + length + b"\r\n" + body


@functools.cache
def _requests() -> Sequence[bytes]:
    upload = b"/upload/storage/v1/b/vault/o"
    plain = b"/upload/storage/v1/b/lake/o"
    made = []
    for where in (upload, plain):
        bucket = where.split(b"/")[5]
        made += [
            _asked(b"POST " + where + b"?uploadType=media&name=n", b"Content-Type: text/plain\r\n", b"content"),
            _asked(b"POST " + where + b"?uploadType=multipart", b"Content-Type: multipart/related; boundary=b\r\n", _MULTIPART),
            _asked(b"POST " + where + b"?uploadType=resumable&name=r", _JSON, b'{"contentType": "text/plain"}'),
            _asked(b"GET /storage/v1/b/" + bucket + b"/o?prefix=a&delimiter=/&maxResults=2&fields=items(name,size)"),
            _asked(b"GET /storage/v1/b/" + bucket + b"/o/a?alt=media&generation=1", b"Range: bytes=1-3\r\n"),
            _asked(b"GET /download/storage/v1/b/" + bucket + b"/o/big?alt=media", b"Range: bytes=-70\r\n"),
            _asked(b"PATCH /storage/v1/b/" + bucket + b"/o/a?ifMetagenerationMatch=1", _JSON, b'{"metadata": {"a": null}}'),
            _asked(b"PUT /storage/v1/b/" + bucket + b"/o/a", _JSON, b'{"contentType": "a/b", "cacheControl": "no-store"}'),
            _asked(b"DELETE /storage/v1/b/" + bucket + b"/o/gone?ifGenerationMatch=0"),
            _asked(b"POST /storage/v1/b/" + bucket + b"/o/a/rewriteTo/b/" + bucket + b"/o/c?maxBytesRewrittenPerCall=1048576", _JSON, b"{}"),
            _asked(b"POST /storage/v1/b/" + bucket + b"/o/d/compose", _JSON, b'{"sourceObjects": [{"name": "a"}], "destination": {}}'),
            _asked(b"POST /storage/v1/b/" + bucket + b"/o/a/copyTo/b/" + bucket + b"/o/c", _JSON, b'{"metadata": {"x": "y"}}'),
            _asked(b"GET /" + bucket + b"?prefix=a&max-keys=3&encoding-type=url"),
            _asked(b"GET /" + bucket + b"/a", b"Range: bytes=0-1\r\nAccept-Encoding: identity\r\n"),
            _asked(b"PUT /" + bucket + b"/x", b"x-goog-meta-a: b\r\nx-goog-if-generation-match: 0\r\nx-goog-hash: crc32c=AAAAAA==\r\n", b"xml"),
            _asked(b"PUT /" + bucket + b"/y", b"x-goog-copy-source: /lake/plain\r\n"),
            _asked(b"POST /" + bucket + b"/u?uploads"),
            _asked(b"PUT /" + bucket + b"/u?partNumber=1&uploadId=abc", b"", b"part"),
            _asked(b"POST /" + bucket + b"/u?uploadId=abc", b"", _COMPLETE),
        ]  # fmt: skip
    return [
        *made,
        _asked(b"POST /batch/storage/v1", b"Content-Type: multipart/mixed; boundary=b\r\n", _PARTS),
        _asked(b"POST /storage/v1/b?project=p", _JSON, b'{"name": "new", "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": true}}}'),
        _asked(b"PUT /storage/v1/b/lake/iam", _JSON, b'{"bindings": [{"role": "roles/storage.objectViewer", "members": ["user:a@b.c"]}], "version": 3}'),
        _asked(b"POST /storage/v1/b/lake/managedFolders", _JSON, b'{"name": "inbox/"}'),
    ]  # fmt: skip


@functools.cache
def _answers() -> Sequence[bytes]:
    STAGES.proxy()
    resource, content = STAGES.sealed
    listing = {"kind": "storage#objects", "items": [resource], "prefixes": ["p/"]}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
    metadata = b"".join(f"x-goog-meta-{name}: {text}\r\n".encode() for name, text in resource["metadata"].items())
    xml = b"x-goog-generation: %s\r\nx-goog-metageneration: 1\r\nx-goog-stored-content-length: %d\r\n" % (
        str(resource["generation"]).encode(), len(content),
    )  # fmt: skip
    return [
        head + json.dumps(resource).encode(),
        head + json.dumps(listing).encode(),
        head + json.dumps({"done": True, "resource": resource, "rewriteToken": "t", "totalBytesRewritten": "1"}).encode(),
        b"HTTP/1.1 200 OK\r\n" + xml + metadata + b"ETag: \"x\"\r\n\r\n" + content,
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/%d\r\n" % len(content) + xml + metadata + b"\r\n" + content[:4],
        b'HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n\r\n{"error": {"code": 404, "message": "No such object"}}',
        b"HTTP/1.1 308 Resume Incomplete\r\nRange: bytes=0-262143\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nLocation: https://storage.googleapis.com/upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=u\r\n\r\n",
    ]  # fmt: skip


def _sidecar_seeds() -> Sequence[bytes]:
    made = sidecars.Sidecar(
        name="a/b", crc32c=1, md5=b"m" * 16, component_count=None, metageneration=2, created=1.7e9, updated=1.7e9,
        attributes=Attributes(content_type="text/plain", metadata={"a": "b"}),
    )  # fmt: skip
    return [made.encoded()]


def _session_seeds() -> Sequence[bytes]:
    document = {
        "name": "n", "attributes": {"content_type": "a/b"}, "preconditions": {"generation_match": 0}, "crc32c": 1,
        "md5": "00" * 16, "size": 10, "begun": 1.7e9, "caller": "",
        "ending": {"content": "c", "size": 1, "stamp": 1, "generation": 2, "sidecar": json.loads(_sidecar_seeds()[0])},
    }  # fmt: skip
    return [json.dumps(document).encode()]


def _envelope_seeds() -> Sequence[bytes]:
    STAGES.proxy()
    return [json.dumps(STAGES.sealed[0]["metadata"]).encode()]


def _beginnings() -> Sequence[bytes]:
    envelope = Envelope.from_metadata(json.loads(_envelope_seeds()[0]))
    made = Beginning(
        bucket="vault", name="n", envelope=envelope, declared=Declared(crc32c=3, md5=b"m" * 16), total=5, fields="name"
    )
    return [made.encoded()]


def _chunk_seeds() -> Sequence[bytes]:
    head = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head + b"5\r\nhello\r\n0;x=y\r\nTrailer: a\r\n\r\n", head + b"1f4\r\n" + b"z" * 500 + b"\r\n0\r\n\r\n"]


_REFUSED = (Refusal, BadRequest)
TARGETS = (
    Target(name="proxy-request", parse=_proxy, errors=(*_REFUSED, *_BROKEN_OFF), seeds=_requests, form=Form.HTTP),
    Target(name="endpoint-request", parse=_endpoint, errors=(*_REFUSED, *_BROKEN_OFF), seeds=_requests, form=Form.HTTP),
    Target(name="service-answer", parse=_service, errors=(), seeds=_answers, form=Form.HTTP),
    Target(name="chunked", parse=_chunked, errors=(BadRequest, BodyTruncated), seeds=_chunk_seeds, form=Form.LINES),
    Target(
        name="multipart", parse=_multipart, errors=(*_REFUSED, BodyTruncated), seeds=lambda: _requests()[1:2], form=Form.HTTP
    ),
    Target(name="batch", parse=_batch, errors=(*_REFUSED, BodyTruncated), seeds=lambda: _requests()[-4:-3], form=Form.HTTP),
    Target(
        name="ranges", parse=_ranges, errors=(Refusal,), form=Form.LINES,
        seeds=lambda: [b"bytes=0-9", b"bytes=-5", b"bytes 0-262143/*", b"bytes */10", b"bytes 5-9/10"],
    ),
    Target(
        name="query", parse=_query, errors=(Refusal,), form=Form.LINES,
        seeds=lambda: [b"generation=1&fields=items(name,metadata/a),nextPageToken&maxResults=%31", b"ifGenerationMatch=0"],
    ),
    Target(name="gzip-content", parse=_gzipped, errors=(Disconnect,), seeds=lambda: [base64.b64decode("H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA==")], form=Form.BYTES),
    Target(name="sealed-object", parse=_opened, errors=(SealBroken,), seeds=_sealed, form=Form.BYTES),
    Target(
        name="envelope", parse=_envelope, errors=(EnvelopeBroken, ValueError, RecursionError), seeds=_envelope_seeds
    ),
    Target(
        name="object-description", parse=_described, errors=(Refused, EnvelopeBroken),
        seeds=lambda: [json.dumps(STAGES.sealed[0]).encode() for _ in [STAGES.proxy()]],
    ),
    Target(name="sidecar", parse=_sidecar, errors=(StorageError,), seeds=_sidecar_seeds),
    Target(name="upload-session", parse=_session, errors=(StorageError,), seeds=_session_seeds),
    Target(name="upload-journal", parse=_beginning, errors=(), seeds=_beginnings),
    Target(name="xml-request", parse=_xml, errors=(Refusal,), seeds=lambda: [_COMPLETE], form=Form.LINES),
)  # fmt: skip
