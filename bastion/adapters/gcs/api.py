"""The requests of the store to Cloud Storage, one method each, without retries.

Multi-part uploads, compose and delete use the library's `Blob`. Everything else uses its session: no method of the
library returns an object's bytes, size and time in one request, or looks up or writes an object with chosen fields, and
its listing takes 12 ms of CPU for a page whose JSON takes 1.2 ms (ADR 38).

Every method raises what `errors.explain` returns.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import google_crc32c
import requests
from google.api_core.exceptions import NotFound as ApiNotFound
from google.api_core.exceptions import from_http_response, from_http_status
from google.cloud.storage import Client
from requests.cookies import RequestsCookieJar
from requests.structures import CaseInsensitiveDict

from bastion.adapters.bucket_requests.answers import NoSuchObject, Transient, short, understood
from bastion.adapters.bucket_requests.certain_writes import Found, Stamp
from bastion.adapters.bucket_requests.content_type import content_type
from bastion.adapters.bucket_requests.retry import TimeLimit
from bastion.adapters.gcs import library
from bastion.adapters.gcs.errors import FAILURES, explain
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, check_read_size
from bastion.core.errors import StoreError
from bastion.ports import StoredObject
from bastion.storage_wire.multipart_related import related_frame

_SERVICE = "Cloud Storage"
_META_FIELDS = "name,size,generation,updated"
_PIECE_BYTES = 256 * 1024
# Maximum of a single-request upload. Larger objects go in parts, each sent completely before its answer.
_SINGLE_UPLOAD_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 16 * 1024 * 1024
# Of a number of 63 bits.
_GENERATION_MAX_DIGITS = 19
_CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,19})", re.ASCII)
_CRC32C = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a listing; the last one has an empty token."""

    metas: tuple[ObjectMeta, ...]
    next_token: str


class BucketApi:
    """The requests to one bucket; thread-safe like the client."""

    def __init__(self, client: Client, bucket: str) -> None:
        self.name = bucket
        self._bucket = client.bucket(bucket)
        self._session = library.session_of(client)
        self._base = library.base_url(client)
        self._user_agent = library.user_agent(client)

    def media(self, key: str, start: int, size: int | None, max_bytes: int, limit: TimeLimit) -> StoredObject:
        """Read `size` stored bytes from `start` (None: all), not decompressed; verify the checksum of complete reads.

        `meta.updated` comes from Last-Modified, in whole seconds. The JSON API does not guarantee that header; without
        it a second request looks up this generation.
        """
        last = "" if size is None else start + size - 1
        headers = {"Range": f"bytes={start}-{last}"} if start or size is not None else {}
        doing = f"reading {self.shown(key)}"
        with self._answer(f"/download/storage/v1{self._path(key)}?alt=media", headers, limit, doing) as response:
            pieces: list[bytes] = []
            # A server may ignore a range.
            skipped = 0 if response.status_code == requests.codes.partial_content else start
            with understood(_SERVICE):
                received = int(response.headers.get("Content-Length") or 0)
            check_read_size(self.shown(key), received - skipped, max_bytes)
            received = 0
            for piece in response.raw.stream(_PIECE_BYTES, decode_content=False):
                received += len(piece)
                check_read_size(self.shown(key), received - skipped, max_bytes)
                pieces.append(piece)
                if limit.exceeded(received):
                    raise Transient(f"only {received} bytes arrived in time", doubtful=False)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        stored = self._stored(key, start, data, response, doing, limit)
        return stored if size is None else replace(stored, data=stored.data[:size])

    def metadata(self, key: str, limit: TimeLimit) -> Found:
        resource = self._json(f"/storage/v1{self._path(key)}?fields={_META_FIELDS},metadata", key, "looking up", limit)
        with understood(_SERVICE):
            return Found(meta=_meta(resource), stamp=Stamp.of(resource.get("metadata") or {}))

    def page(self, prefix: str, start: str, end: str, token: str, limit: TimeLimit) -> Page:
        """Return one page of the objects under a prefix, from `start` (inclusive) to `end` (exclusive, if given)."""
        query = {"fields": f"items({_META_FIELDS}),nextPageToken", "maxResults": str(limits.LIST_PAGE_OBJECTS)}
        asked = {"prefix": prefix, "startOffset": start, "endOffset": end, "pageToken": token}
        query.update({name: value for name, value in asked.items() if value})
        path = f"/storage/v1/b/{quote(self.name, safe='')}/o?{urlencode(query)}"
        answer = self._json(path, prefix, "listing", limit)
        with understood(_SERVICE):
            metas = tuple(_meta(item) for item in answer.get("items", ()))
            return Page(metas=metas, next_token=str(answer.get("nextPageToken", "")))

    def insert(self, key: str, data: bytes, *, stamp: Stamp, limit: TimeLimit) -> ObjectMeta:
        """Write the object if its generation is `stamp.follows`: one request up to 8 MiB, otherwise a session."""
        if len(data) > _SINGLE_UPLOAD_BYTES:
            return self._insert_in_parts(key, data, stamp, limit)
        resource = {"name": key, "metadata": stamp.metadata(), "crc32c": _crc32c(data)}
        # Drawn at random when the data existed already, so the data cannot contain it.
        frame = related_frame(resource, content_type(data), boundary=stamp.write_id)
        body = frame.head + data + frame.tail
        path = (
            f"/upload/storage/v1/b/{quote(self.name, safe='')}/o"
            f"?uploadType=multipart&ifGenerationMatch={stamp.follows}&fields={_META_FIELDS}"
        )
        answer = self._json(path, key, "writing", limit, headers={"Content-Type": frame.content_type}, body=body)
        with understood(_SERVICE):
            return _meta(answer)

    def _insert_in_parts(self, key: str, data: bytes, stamp: Stamp, limit: TimeLimit) -> ObjectMeta:
        blob = self._bucket.blob(key, chunk_size=_CHUNK_BYTES)
        blob.metadata = stamp.metadata()
        # The service compares. The library's own check would delete the object, even a newer generation.
        blob.crc32c = _crc32c(data)
        with self._explained(f"writing {self.shown(key)}"), _session_may_end():
            blob.upload_from_string(
                data,
                content_type=content_type(data),
                if_generation_match=stamp.follows,
                checksum=None,
                retry=None,
                timeout=limit.timeouts(),
            )
        return _meta(library.resource_of(blob))

    def compose(self, key: str, part: ObjectMeta, content_type: str, *, stamp: Stamp, limit: TimeLimit) -> ObjectMeta:
        """Append `part` to generation `stamp.follows` of the object, if that is current."""
        blob = self._bucket.blob(key)
        blob.metadata = stamp.metadata()
        blob.content_type = content_type
        # The source needs no generation: if it has changed when it is read, the write's condition fails too.
        sources = [self._bucket.blob(key), self._bucket.blob(part.key, generation=part.generation)]
        with self._explained(f"appending to {self.shown(key)}"):
            blob.compose(sources, if_generation_match=stamp.follows, retry=None, timeout=limit.timeouts())
        return _meta(library.resource_of(blob))

    def delete(self, key: str, *, generation: int, limit: TimeLimit) -> None:
        with self._explained(f"deleting {self.shown(key)}"):
            self._bucket.blob(key).delete(if_generation_match=generation, retry=None, timeout=limit.timeouts())

    def shown(self, key: str) -> str:
        """A key for messages, without control characters."""
        path = f"gs://{self.name}/{key}"
        return path if path.isprintable() else ascii(path)

    def _path(self, key: str) -> str:
        return f"/b/{quote(self.name, safe='')}/o/{quote(key, safe='')}"

    def _stored(
        self, key: str, start: int, data: bytes, response: requests.Response, doing: str, limit: TimeLimit
    ) -> StoredObject:
        headers = response.headers
        length = headers.get("Content-Length")
        if length is not None and length != str(len(data)):
            raise Transient(f"received {len(data)} of {length} bytes", doubtful=False)
        whole = response.status_code != requests.codes.partial_content
        declared = _CRC32C.search(headers.get("x-goog-hash", ""))
        if whole and declared is not None and declared.group(1) != _crc32c(data):
            raise Transient("the bytes were damaged in transit: the CRC32C differs", doubtful=False)
        size = len(data)
        if not whole:
            total = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if total is None:
                raise Transient("the answer lacks the object's size", doubtful=False)
            size = int(total.group(1))
        elif start:
            data = data[start:]  # a server may ignore a range
        generation = headers.get("x-goog-generation", "")
        if not (generation.isascii() and generation.isdecimal() and len(generation) <= _GENERATION_MAX_DIGITS):
            raise StoreError(
                f"{doing}: the answer has no generation (header x-goog-generation), so a bastion cannot work on this "
                "storage service"
            )
        updated = _last_modified(headers)
        if updated is None:
            updated = self._updated(key, int(generation), limit)
        meta = ObjectMeta(key=key, size=size, generation=int(generation), updated=updated)
        return StoredObject(meta=meta, data=data)

    def _updated(self, key: str, generation: int, limit: TimeLimit) -> float:
        """When that generation was written."""
        path = f"/storage/v1{self._path(key)}?generation={generation}&fields={_META_FIELDS}"
        try:
            answer = self._json(path, key, "looking up", limit)
            with understood(_SERVICE):
                return _meta(answer).updated
        except NoSuchObject:
            raise Transient("the object was replaced while it was read", doubtful=False) from None

    def _json(
        self,
        path: str,
        key: str,
        verb: str,
        limit: TimeLimit,
        *,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> dict[str, Any]:
        with self._answer(path, headers or {}, limit, f"{verb} {self.shown(key)}", body) as response:
            try:
                document = response.json()
            except RecursionError:
                document = None
        if not isinstance(document, dict):
            raise Transient("the answer is not a JSON object", doubtful=True)
        return document

    @contextlib.contextmanager
    def _answer(
        self, path: str, headers: dict[str, str], limit: TimeLimit, doing: str, body: bytes | None = None
    ) -> Iterator[requests.Response]:
        """Yield the answer to a GET, or a POST if there is a body; the answer's body is unread."""
        headers = {"User-Agent": self._user_agent, "Accept-Encoding": "gzip", **headers}
        with self._explained(doing), self._sent(self._base + path, headers, body, limit.timeouts()) as response:
            if not response.ok:
                raise _failure(response)
            yield response

    def _sent(
        self, url: str, headers: dict[str, str], body: bytes | None, timeouts: tuple[float, float]
    ) -> requests.Response:
        """Send a request like the session's `request`, in two thirds of its time: fixed settings are merged once."""
        session = self._session
        request = requests.PreparedRequest()
        request.method = "GET" if body is None else "POST"
        request.url = url
        request.body = body
        request.headers = CaseInsensitiveDict(headers)
        if body is not None:
            request.headers["Content-Length"] = str(len(body))
        request._cookies = RequestsCookieJar()
        asks_for_token = functools.partial(library.token_request(session), timeout=timeouts)
        session.credentials.before_request(asks_for_token, request.method, url, request.headers)
        response: requests.Response = session.send(request, stream=True, timeout=timeouts, proxies=session.proxies)
        if response.status_code == requests.codes.unauthorized:
            # The token has expired or was revoked. The session fetches another one.
            response.close()
            response = session.request(request.method, url, data=body, headers=headers, stream=True, timeout=timeouts)
        return response

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as failure:
            raise explain(failure, bucket=self.name, doing=doing) from failure
        except (AttributeError, RecursionError) as failure:  # of the library, for an error that is not the service's
            raise Transient(f"the answer is not {_SERVICE}'s ({short(str(failure))})", doubtful=True) from failure


@contextlib.contextmanager
def _session_may_end() -> Iterator[None]:
    """Restart a multi-part upload that cannot continue."""
    try:
        yield
    except ApiNotFound as error:
        if "does not exist" in str(error) or "No such object" in str(error):
            raise
        raise Transient("the upload's session is gone", doubtful=True) from error
    except ValueError as error:
        if isinstance(error, requests.RequestException):
            raise
        # The library's error for a service that kept less than it was sent.
        raise Transient(f"the upload was cut short: {error}", doubtful=True) from error


def _failure(response: requests.Response) -> Exception:
    """The library's error for an answer that is no success."""
    failure: Exception
    try:
        failure = from_http_response(response)  # type: ignore[no-untyped-call]
    except (LookupError, TypeError, AttributeError, RecursionError):  # JSON of another form: a proxy's answer
        failure = from_http_status(response.status_code, response.text[:500], response=response)  # type: ignore[no-untyped-call]
    return failure


def _crc32c(data: bytes) -> str:
    return base64.b64encode(int(google_crc32c.value(data)).to_bytes(4, "big")).decode()


def _last_modified(headers: Mapping[str, str]) -> float | None:
    """Return Last-Modified in whole seconds since the epoch; None if missing or invalid."""
    try:
        return email.utils.parsedate_to_datetime(headers.get("Last-Modified", "")).timestamp()
    except (ValueError, OverflowError):
        return None


def _meta(resource: dict[str, Any]) -> ObjectMeta:
    key = resource["name"]
    if not isinstance(key, str):
        raise TypeError("a name that is no text")
    return ObjectMeta(
        key=key,
        # A service may omit zeros.
        size=int(resource.get("size", 0)),
        generation=int(resource["generation"]),
        updated=_seconds(resource["updated"]),
    )


def _seconds(text: str) -> float:
    """Parse `2026-01-02T03:04:05.006Z`, with any number of fractional digits."""
    whole, _, fraction = text.rstrip("Zz").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
