"""The part of S3 that the store uses, in memory, after Amazon's API reference: any key, order of bytes, faults.

The real server of the tests (`s3_server.py`) has neither every key nor that order, and ignores no condition.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import itertools
import re
import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.s3.client import new_client
from bastion.adapters.s3.store import S3Store
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.emulators.gcs.faults import Faults
from bastion.net.http1 import Headers, HttpServer, Request, Response
from tests.support.waiting import until

_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "", **fields: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.fields = status, code, message or code, fields


@dataclass
class _Object:
    data: bytes
    etag: str
    modified: float
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class _Upload:
    headers: dict[str, str]
    began: float
    parts: dict[int, bytes] = field(default_factory=dict)


class S3Stub:
    """A service with any number of buckets.

    Attributes:
        ignored: Conditions that it does not apply, as `DELETE If-Match`, `PUT If-None-Match`, `POST If-Match`.
        asked: The requests since it began, as `PUT`, `HEAD`, `LIST`, `CREATE`, `COPY`, `PART`, `COMPLETE`, `ABORT`.
        before: Called with each request before it is answered.
        now: The clock for Last-Modified.
        uploads: Those in parts that are under way.
    """

    def __init__(self, *, rules: Sequence[FaultRule] = (), seed: int = 0, ignored: Collection[str] = ()) -> None:
        self.ignored = ignored
        self.asked: list[str] = []
        self.before: Callable[[Request], Response | None] = lambda _: None
        self.now: Callable[[], float] = time.time
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.pages_of = 1000
        self.uploads: dict[str, _Upload] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.faults = Faults(rules, seed=seed)
        self._faulty = self.faults.wrap(self._answer)
        self._server = HttpServer(self._count)
        self._under_way = 0
        self._clients: dict[Patience | None, Any] = {}

    def open(self) -> None:
        self._server.open()

    def close(self) -> None:
        self.faults.close()
        self._server.close(grace_seconds=1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def client(self, patience: Patience | None = None, **settings: Any) -> Any:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        return new_client(patience, **{"endpoint_url": self.url, **keys, **settings})

    def new_bucket(self) -> str:
        name = f"bucket-{next(self._numbers)}"
        self.buckets[name] = {}
        return name

    def store(self, bucket: str, patience: Patience | None = None) -> S3Store:
        # A client takes a third of a second to make.
        if patience not in self._clients:
            self._clients[patience] = self.client(patience)
        return S3Store(bucket, client=self._clients[patience], patience=patience, in_order=True)

    def let_time_pass(self) -> None:
        """From now on each write comes a second after the one before."""
        ticks = itertools.count(int(time.time()))
        self.now = lambda: float(next(ticks))

    def settle(self) -> None:
        """Wait until no request is under way whose client stopped waiting; it might still write."""
        until(lambda: self._under_way == 0)

    def _count(self, request: Request) -> Response:
        with self._lock:
            self._under_way += 1
        try:
            return self._faulty(request)
        finally:
            with self._lock:
                self._under_way -= 1

    def _answer(self, request: Request) -> Response:
        early = self.before(request)
        if early is not None:
            return early
        query = {name: values[0] for name, values in parse_qs(request.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(request.path).removeprefix("/").partition("/")
        body = request.body.read()
        kind = _kind(request, key, query)
        self.asked.append(kind)
        try:
            with self._lock:
                if bucket not in self.buckets:
                    raise _Refused(404, "NoSuchBucket", "The specified bucket does not exist")
                return self._serve(kind, self.buckets[bucket], key, query, request.headers, body)
        except _Refused as refused:
            return refusal(refused.status, refused.code, refused.message, bare=request.method == "HEAD")

    def _serve(
        self, kind: str, objects: dict[str, _Object], key: str, query: dict[str, str], headers: Headers, body: bytes
    ) -> Response:
        match kind:
            case "LIST":
                return self._page(objects, query)
            case "GET" | "HEAD":
                return _read(objects, key, headers, whole=kind == "GET")
            case "PUT":
                self._check(objects, key, "PUT", headers)
                _check_sum(headers, body)
                return self._store(objects, key, body, hashlib.md5(body).hexdigest(), self.now(), _kept(headers))
            case "DELETE":
                if key in objects or "If-Match" in headers:
                    self._check(objects, key, "DELETE", headers, missing_is_fine=True)
                objects.pop(key, None)
                return _response(204)
            case "CREATE":
                upload = f"upload-{next(self._numbers)}"
                self.uploads[upload] = _Upload(_kept(headers), self.now())
                return _xml(
                    f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                )
            case "ABORT":
                self._upload(query)
                del self.uploads[query["uploadId"]]
                return _response(204)
            case "PART" | "COPY":
                if kind == "COPY":
                    body = self._copied(headers)
                _check_sum(headers, body)
                self._upload(query).parts[int(query["partNumber"])] = body
                etag = f'"{hashlib.md5(body).hexdigest()}"'
                if kind == "PART":
                    return _response(200, [("ETag", etag)])
                return _xml(f"<CopyPartResult><ETag>{escape(etag)}</ETag></CopyPartResult>")
            case _:
                return self._complete(objects, key, self._upload(query), query["uploadId"], headers, body)

    def _complete(
        self, objects: dict[str, _Object], key: str, upload: _Upload, number: str, headers: Headers, body: bytes
    ) -> Response:
        self._check(objects, key, "POST", headers)
        parts = [upload.parts[int(each)] for each in _PART.findall(body.decode())]
        if any(len(part) < 5 * 1024 * 1024 for part in parts[:-1]):
            raise _Refused(400, "EntityTooSmall")
        digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
        del self.uploads[number]
        answer = self._store(objects, key, b"".join(parts), f"{digest}-{len(parts)}", upload.began, upload.headers)
        return _xml(
            f"<CompleteMultipartUploadResult><ETag>{escape(answer.headers.get('ETag'))}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def _store(
        self, objects: dict[str, _Object], key: str, data: bytes, etag: str, modified: float, headers: dict[str, str]
    ) -> Response:
        objects[key] = _Object(data, f'"{etag}"', float(int(modified)), headers)
        return _response(200, [("ETag", f'"{etag}"')])

    def _copied(self, headers: Headers) -> bytes:
        bucket, _, key = unquote(headers.get("x-amz-copy-source")).removeprefix("/").partition("/")
        found = self.buckets[bucket].get(key)
        if found is None:
            raise _Refused(404, "NoSuchKey")
        if headers.get("x-amz-copy-source-if-match", found.etag) != found.etag:
            raise _Refused(412, "PreconditionFailed")
        first, last = headers.get("x-amz-copy-source-range").removeprefix("bytes=").split("-")
        return found.data[int(first) : int(last) + 1]

    def _upload(self, query: dict[str, str]) -> _Upload:
        if query["uploadId"] not in self.uploads:
            raise _Refused(404, "NoSuchUpload")
        return self.uploads[query["uploadId"]]

    def _check(
        self,
        objects: dict[str, _Object],
        key: str,
        method: str,
        headers: Headers,
        *,
        missing_is_fine: bool = False,
    ) -> None:
        found = objects.get(key)
        wanted = headers.get("If-Match")
        if wanted and f"{method} If-Match" not in self.ignored:
            if found is None and not missing_is_fine:
                raise _Refused(404, "NoSuchKey")
            if found is not None and found.etag != wanted:
                raise _Refused(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
        if headers.get("If-None-Match") == "*" and found and f"{method} If-None-Match" not in self.ignored:
            raise _Refused(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")

    def _page(self, objects: dict[str, _Object], query: dict[str, str]) -> Response:
        prefix = query.get("prefix", "")
        after = unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        found = sorted(key for key in objects if key.startswith(prefix) and key > after)
        most = min(int(query.get("max-keys", "1000")), self.pages_of)
        more = len(found) > most
        items = "".join(
            f"<Contents><Key>{escape(quote(key, safe='/'))}</Key><LastModified>{_iso(objects[key].modified)}"
            f"</LastModified><ETag>{escape(objects[key].etag)}</ETag><Size>{len(objects[key].data)}</Size></Contents>"
            for key in found[:most]
        )
        last = quote(found[most - 1], safe="") if more else ""
        return _xml(
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated><EncodingType>url</EncodingType>"
            f"<NextContinuationToken>{last}</NextContinuationToken>{items}</ListBucketResult>"
        )


def refusal(status: int, code: str, message: str = "", *, bare: bool = False, **headers: str) -> Response:
    """An error as S3 words it; an answer to HEAD has no body."""
    body = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return _response(status, [("Content-Type", "application/xml"), *fields], b"" if bare else body.encode())


def _read(objects: dict[str, _Object], key: str, headers: Headers, *, whole: bool) -> Response:
    found = objects.get(key)
    if found is None:
        raise _Refused(404, "NoSuchKey", "The specified key does not exist.")
    if headers.get("If-Match", found.etag) != found.etag:
        raise _Refused(412, "PreconditionFailed")
    told = [("ETag", found.etag), ("Last-Modified", email.utils.formatdate(found.modified, usegmt=True))]
    told += [*found.headers.items()]
    asked = headers.get("Range")
    if not whole:
        return _response(200, [*told, ("Content-Length", str(len(found.data)))])
    if asked:
        first = int(asked.removeprefix("bytes=").partition("-")[0])
        last = asked.partition("-")[2]
        if first >= len(found.data):
            raise _Refused(416, "InvalidRange")
        end = min(len(found.data), int(last) + 1) if last else len(found.data)
        told.append(("Content-Range", f"bytes {first}-{end - 1}/{len(found.data)}"))
        return _response(206, told, found.data[first:end])
    return _response(200, told, found.data)


def _kind(request: Request, key: str, query: dict[str, str]) -> str:
    match request.method:
        case "GET" if not key:
            return "LIST"
        case "PUT" if "partNumber" in query:
            return "COPY" if "x-amz-copy-source" in request.headers else "PART"
        case "POST":
            return "CREATE" if "uploads" in query else "COMPLETE"
        case "DELETE" if "uploadId" in query:
            return "ABORT"
        case method:
            return method


def _check_sum(headers: Headers, body: bytes) -> None:
    told = headers.get("x-amz-checksum-crc32")
    if told and told != base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode():
        raise _Refused(400, "BadDigest")


def _kept(headers: Headers) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name.lower().startswith("x-amz-meta-") or name.lower() in ("content-type", "x-amz-checksum-crc32")
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(body: str) -> Response:
    return _response(200, [("Content-Type", "application/xml")], f'<?xml version="1.0"?>{body}'.encode())


def _response(status: int, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> Response:
    dated = [("Date", email.utils.formatdate(usegmt=True)), *headers]
    return Response(status=status, headers=Headers(dated), body=body)
