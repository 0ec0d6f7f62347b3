"""Valid requests, answers and files for `wire_targets`, and the proxy that made some of them."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.resources import Attributes
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.sealing import Sealing, new_header
from bastion.proxy.uploads.upload_journal import Beginning
from bastion.storage_wire.declared_sums import Declared
from tests.support.proxy_stage import Stage
from tests.support.sealed_objects import seal

# Of a stage or endpoint, which remember what was written to them.
_LIFE_INPUTS = 400


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


KEY = bytes(range(32))
HEADER = new_header(random=bytes)


def sealed() -> Sequence[bytes]:
    return [
        seal(Sealing(KEY, HEADER), b"text"),
        seal(Sealing(KEY, HEADER), b""),
        seal(Sealing(KEY, HEADER), b"0" * 70_000),
    ]


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
COMPLETE = (
    b"<CompleteMultipartUpload xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Part><PartNumber>1</PartNumber>"
    b'<ETag>"a"</ETag></Part></CompleteMultipartUpload>'
)


def _asked(line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n".encode()
    return line + b" HTTP/1.1\r\nHost: storage.googleapis.com\r\n" + headers + length + b"\r\n" + body


@functools.cache
def requests() -> Sequence[bytes]:
    upload = b"/upload/storage/v1/b/vault/o"
    plain = b"/upload/storage/v1/b/lake/o"
    made = []
    for where in (upload, plain):
        bucket = where.split(b"/")[5]
        made += [
            _asked(b"POST " + where + b"?uploadType=media&name=n", b"Content-Type: text/plain\r\n", b"content"),
            _asked(
                b"POST " + where + b"?uploadType=multipart",
                b"Content-Type: multipart/related; boundary=b\r\n",
                _MULTIPART,
            ),
            _asked(b"POST " + where + b"?uploadType=resumable&name=r", _JSON, b'{"contentType": "text/plain"}'),
            _asked(b"GET /storage/v1/b/" + bucket + b"/o?prefix=a&delimiter=/&maxResults=2&fields=items(name,size)"),
            _asked(b"GET /storage/v1/b/" + bucket + b"/o/a?alt=media&generation=1", b"Range: bytes=1-3\r\n"),
            _asked(b"GET /download/storage/v1/b/" + bucket + b"/o/big?alt=media", b"Range: bytes=-70\r\n"),
            _asked(
                b"PATCH /storage/v1/b/" + bucket + b"/o/a?ifMetagenerationMatch=1", _JSON, b'{"metadata": {"a": null}}'
            ),
            _asked(
                b"PUT /storage/v1/b/" + bucket + b"/o/a", _JSON, b'{"contentType": "a/b", "cacheControl": "no-store"}'
            ),
            _asked(b"DELETE /storage/v1/b/" + bucket + b"/o/gone?ifGenerationMatch=0"),
            _asked(
                b"POST /storage/v1/b/"
                + bucket
                + b"/o/a/rewriteTo/b/"
                + bucket
                + b"/o/c?maxBytesRewrittenPerCall=1048576",
                _JSON,
                b"{}",
            ),
            _asked(
                b"POST /storage/v1/b/" + bucket + b"/o/d/compose",
                _JSON,
                b'{"sourceObjects": [{"name": "a"}], "destination": {}}',
            ),
            _asked(
                b"POST /storage/v1/b/" + bucket + b"/o/a/copyTo/b/" + bucket + b"/o/c",
                _JSON,
                b'{"metadata": {"x": "y"}}',
            ),
            _asked(b"GET /" + bucket + b"?prefix=a&max-keys=3&encoding-type=url"),
            _asked(b"GET /" + bucket + b"/a", b"Range: bytes=0-1\r\nAccept-Encoding: identity\r\n"),
            _asked(
                b"PUT /" + bucket + b"/x",
                b"x-goog-meta-a: b\r\nx-goog-if-generation-match: 0\r\nx-goog-hash: crc32c=AAAAAA==\r\n",
                b"xml",
            ),
            _asked(b"PUT /" + bucket + b"/y", b"x-goog-copy-source: /lake/plain\r\n"),
            _asked(b"POST /" + bucket + b"/u?uploads"),
            _asked(b"PUT /" + bucket + b"/u?partNumber=1&uploadId=abc", b"", b"part"),
            _asked(b"POST /" + bucket + b"/u?uploadId=abc", b"", COMPLETE),
        ]
    return [
        *made,
        _asked(b"POST /batch/storage/v1", b"Content-Type: multipart/mixed; boundary=b\r\n", _PARTS),
        _asked(
            b"POST /storage/v1/b?project=p",
            _JSON,
            b'{"name": "new", "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": true}}}',
        ),
        _asked(
            b"PUT /storage/v1/b/lake/iam",
            _JSON,
            b'{"bindings": [{"role": "roles/storage.objectViewer", "members": ["user:a@b.c"]}], "version": 3}',
        ),
        _asked(b"POST /storage/v1/b/lake/managedFolders", _JSON, b'{"name": "inbox/"}'),
    ]


@functools.cache
def answers() -> Sequence[bytes]:
    STAGES.proxy()
    resource, content = STAGES.sealed
    listing = {"kind": "storage#objects", "items": [resource], "prefixes": ["p/"]}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n"
    metadata = b"".join(f"x-goog-meta-{name}: {text}\r\n".encode() for name, text in resource["metadata"].items())
    xml = b"x-goog-generation: %s\r\nx-goog-metageneration: 1\r\nx-goog-stored-content-length: %d\r\n" % (
        str(resource["generation"]).encode(),
        len(content),
    )
    return [
        head + json.dumps(resource).encode(),
        head + json.dumps(listing).encode(),
        head
        + json.dumps({"done": True, "resource": resource, "rewriteToken": "t", "totalBytesRewritten": "1"}).encode(),
        b"HTTP/1.1 200 OK\r\n" + xml + metadata + b'ETag: "x"\r\n\r\n' + content,
        b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/%d\r\n" % len(content)
        + xml
        + metadata
        + b"\r\n"
        + content[:4],
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n\r\n"
        b'{"error": {"code": 404, "message": "No such object"}}',
        b"HTTP/1.1 308 Resume Incomplete\r\nRange: bytes=0-262143\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nLocation: https://storage.googleapis.com/upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=u\r\n\r\n",
    ]


def sidecar_seeds() -> Sequence[bytes]:
    made = sidecars.Sidecar(
        name="a/b",
        crc32c=1,
        md5=b"m" * 16,
        component_count=None,
        metageneration=2,
        created=1.7e9,
        updated=1.7e9,
        attributes=Attributes(content_type="text/plain", metadata={"a": "b"}),
    )
    return [made.encoded()]


def session_seeds() -> Sequence[bytes]:
    document = {
        "name": "n",
        "attributes": {"content_type": "a/b"},
        "preconditions": {"generation_match": 0},
        "crc32c": 1,
        "md5": "00" * 16,
        "size": 10,
        "begun": 1.7e9,
        "caller": "",
        "ending": {"content": "c", "size": 1, "stamp": 1, "generation": 2, "sidecar": json.loads(sidecar_seeds()[0])},
    }
    return [json.dumps(document).encode()]


def envelope_seeds() -> Sequence[bytes]:
    STAGES.proxy()
    return [json.dumps(STAGES.sealed[0]["metadata"]).encode()]


def beginnings() -> Sequence[bytes]:
    envelope = Envelope.from_metadata(json.loads(envelope_seeds()[0]))
    made = Beginning(
        bucket="vault", name="n", envelope=envelope, declared=Declared(crc32c=3, md5=b"m" * 16), total=5, fields="name"
    )
    return [made.encoded()]


def chunk_seeds() -> Sequence[bytes]:
    head = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head + b"5\r\nhello\r\n0;x=y\r\nTrailer: a\r\n\r\n", head + b"1f4\r\n" + b"z" * 500 + b"\r\n0\r\n\r\n"]
