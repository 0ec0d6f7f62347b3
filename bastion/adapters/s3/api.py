"""The requests of the store to S3, one method each, without retries.

Every method raises what `errors.explain` returns.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.parsers import ResponseParserError

from bastion.adapters.bucket_requests.answers import NoSuchObject, PastTheEnd, Transient, short, understood
from bastion.adapters.bucket_requests.certain_writes import Found, Stamp
from bastion.adapters.bucket_requests.content_type import content_type
from bastion.adapters.bucket_requests.retry import TimeLimit
from bastion.adapters.s3.client import endpoint_of
from bastion.adapters.s3.errors import FAILURES, Place, explain, status_of
from bastion.adapters.s3.generations import generation_of
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, check_read_size
from bastion.core.errors import AccessDenied, StoreError

_SERVICE = "S3"
# What botocore raises for an answer that is not S3's; RuntimeError and OverflowError are those of times.
_UNREADABLE = (ResponseParserError, ValueError, RuntimeError, OverflowError)
_PIECE_BYTES = 256 * 1024
# A larger body is sent piece by piece, each within the time to send. It costs a round trip (`Expect: 100-continue`).
_WHOLE_BODY_BYTES = 1024 * 1024
# Largest part that is copied at once: the service takes 5 GiB, at some 100 MB a second and without a word meanwhile.
_COPIED_PART_BYTES = 512 * 1024**2
# Statuses that mean this or that, which only an answer with a body tells.
_WITH_A_REASON = frozenset({400, 401, 403})
_CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An object as an answer tells it."""

    found: Found
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a listing; the last one has an empty token."""

    metas: tuple[ObjectMeta, ...]
    next_token: str


class BucketApi:
    """The requests to one bucket; thread-safe like the client."""

    def __init__(self, client: Any, bucket: str) -> None:
        self.name = bucket
        self.endpoint = endpoint_of(client)
        self._client = client
        self._place = Place(bucket=bucket, endpoint=self.endpoint)
        # An answer to HEAD does not tell a missing bucket from a missing object.
        self._bucket_seen = False

    def media(
        self, key: str, start: int, max_bytes: int, limit: TimeLimit, *, size: int | None = None, etag: str = ""
    ) -> Seen:
        """Read `size` bytes from `start` (None: all), of the object with that ETag if one is given; verify the CRC32 if
        complete.

        `found.stamp` is set, too.
        """
        last = "" if size is None else start + size - 1
        ranged = bool(start) or size is not None
        asked: dict[str, Any] = {"Range": f"bytes={start}-{last}"} if ranged else {"ChecksumMode": "ENABLED"}
        if etag:
            asked["IfMatch"] = etag
        with self._explained(f"reading {self.shown(key)}"):
            answer = self._client.get_object(Bucket=self.name, Key=key, **asked)
            self._bucket_seen = True
            data = self._body(key, answer, start, max_bytes, limit)
        whole = len(data)
        if ranged:
            total = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
            if total is not None:
                whole = int(total.group(1))
            else:  # a server may ignore a range
                data = data[start:][:size]
        elif answer.get("ChecksumCRC32") not in (None, _crc32(data)) and "-" not in answer["ChecksumCRC32"]:
            raise Transient("the bytes were damaged in transit: the CRC32 differs", doubtful=False)
        with understood(_SERVICE):
            return Seen(found=_found(key, answer, whole), data=data)

    def _body(self, key: str, answer: Mapping[str, Any], start: int, max_bytes: int, limit: TimeLimit) -> bytes:
        body = answer["Body"]
        skipped = 0 if "ContentRange" in answer else start
        with contextlib.closing(body):
            check_read_size(self.shown(key), int(answer.get("ContentLength") or 0) - skipped, max_bytes)
            pieces: list[bytes] = []
            received = 0
            while piece := body.read(_PIECE_BYTES):
                received += len(piece)
                check_read_size(self.shown(key), received - skipped, max_bytes)
                pieces.append(piece)
                if limit.exceeded(received):
                    raise Transient(f"only {received} bytes arrived in time", doubtful=False)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def metadata(self, key: str, _limit: TimeLimit | None = None) -> Found:
        doing = f"looking up {self.shown(key)}"
        try:
            answer = self._client.head_object(Bucket=self.name, Key=key)
        except FAILURES as failure:
            status = status_of(failure)
            if status == 404:
                self._see_bucket()
                raise NoSuchObject("Not Found") from failure
            if status in _WITH_A_REASON:
                self._ask_for_reason(key)
            raise explain(failure, place=self._place, doing=doing) from failure
        except _UNREADABLE as failure:
            raise Transient(f"the answer is not S3's ({short(str(failure))})", doubtful=True) from failure
        self._bucket_seen = True
        with understood(_SERVICE):
            return _found(key, answer, int(answer["ContentLength"]))

    def page(self, prefix: str, start_after: str, token: str) -> Page:
        """Return one page of the objects under a prefix, after `start_after`."""
        asked = {"Prefix": prefix, "StartAfter": "" if token else start_after, "ContinuationToken": token}
        with self._explained(f"listing {self.shown(prefix)}*"):
            answer = self._client.list_objects_v2(
                Bucket=self.name,
                MaxKeys=limits.LIST_PAGE_OBJECTS,
                **{name: value for name, value in asked.items() if value},
            )
        self._bucket_seen = True
        if "IsTruncated" not in answer:  # any XML is an empty listing otherwise
            raise Transient("the answer is not a listing of S3", doubtful=False)
        with understood(_SERVICE):
            return Page(
                metas=tuple(
                    _meta(item["Key"], int(item["Size"]), item["ETag"], item["LastModified"].timestamp())
                    for item in answer.get("Contents", ())
                ),
                next_token=answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else "",
            )

    def put(self, key: str, data: bytes, *, etag: str, stamp: Stamp) -> Found:
        """Write the object if it has that ETag; empty: if it does not exist."""
        return self._landed(
            key,
            len(data),
            stamp,
            lambda: self._client.put_object(
                Bucket=self.name,
                Key=key,
                Body=_sendable(data),
                ContentType=content_type(data),
                ChecksumCRC32=_crc32(data),
                Metadata=stamp.metadata(),
                **_condition(etag),
            ),
        )

    def grow(self, key: str, old: Found, data: bytes, *, stamp: Stamp) -> Found:
        """Write the object that is there, if it has that ETag, and more bytes, without moving what is there.

        Every part but the last has at least 5 MiB.
        """
        target = {"Bucket": self.name, "Key": key}
        doing = f"appending to {self.shown(key)}"
        with self._explained(doing):
            upload = self._client.create_multipart_upload(
                **target, ContentType=content_type(data), Metadata=stamp.metadata()
            )["UploadId"]
        try:
            with self._explained(doing):
                parts = [*self._copies(target, upload, old)]
                if data:
                    body = {"Body": _sendable(data), "ChecksumCRC32": _crc32(data)}
                    last = self._client.upload_part(**target, UploadId=upload, PartNumber=len(parts) + 1, **body)
                    parts.append(last["ETag"])
            numbered = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(parts, 1)]
            return self._landed(
                key,
                old.meta.size + len(data),
                stamp,
                lambda: self._client.complete_multipart_upload(
                    **target, UploadId=upload, MultipartUpload={"Parts": numbered}, **_condition(old.etag)
                ),
            )
        except BaseException:
            # Once only; a lifecycle rule removes what is left.
            with contextlib.suppress(*FAILURES):
                self._client.abort_multipart_upload(**target, UploadId=upload)
            raise

    def _copies(self, target: Mapping[str, str], upload: str, old: Found) -> Iterator[str]:
        """Copy the object into parts of an upload; the ETag of each."""
        count = -(-old.meta.size // _COPIED_PART_BYTES)
        each = -(-old.meta.size // max(count, 1))
        for number in range(count):
            last = min(old.meta.size, (number + 1) * each) - 1
            copied = self._client.upload_part_copy(
                **target,
                UploadId=upload,
                PartNumber=number + 1,
                CopySource=dict(target),
                CopySourceIfMatch=old.etag,
                CopySourceRange=f"bytes={number * each}-{last}",
            )
            yield copied["CopyPartResult"]["ETag"]

    def delete(self, key: str, *, etag: str) -> None:
        """Delete the object if it has that ETag."""
        with self._explained(f"deleting {self.shown(key)}"):
            self._client.delete_object(Bucket=self.name, Key=key, IfMatch=etag)

    def keeps_versions(self) -> bool:
        """Whether versioning is on; False if this identity may not know."""
        with contextlib.suppress(*FAILURES):
            status: str = self._client.get_bucket_versioning(Bucket=self.name).get("Status", "")
            return status == "Enabled"
        return False

    def shown(self, key: str) -> str:
        """A key for messages, without control characters."""
        path = f"s3://{self.name}/{key}"
        return path if path.isprintable() else ascii(path)

    def _landed(self, key: str, size: int, stamp: Stamp, send: Callable[[], Mapping[str, Any]]) -> Found:
        """Send a write and look up its time, which its answer does not tell."""
        with self._explained(f"writing {self.shown(key)}"):
            answer = send()
        self._bucket_seen = True
        try:
            found = self.metadata(key)
        except Transient as failure:
            raise Transient(f"it was written, but its time is unknown: {failure}", doubtful=True) from failure
        except AccessDenied as failure:
            raise AccessDenied(f"{self.shown(key)} was written, but its time is unknown: {failure}") from failure
        except NoSuchObject:
            found = None
        if found is not None and found.stamp == stamp:
            return found
        # Replaced or deleted since: the generation is no longer there, whatever its time was.
        with understood(_SERVICE):
            return Found(meta=_meta(key, size, answer["ETag"], _date(answer)), stamp=stamp, etag=answer["ETag"])

    def _see_bucket(self) -> None:
        """Raise if the bucket does not exist."""
        if not self._bucket_seen:
            with self._explained(f"looking up s3://{self.name}"):
                # HeadBucket does not tell why, either.
                self._client.list_objects_v2(Bucket=self.name, MaxKeys=1)
            self._bucket_seen = True

    def _ask_for_reason(self, key: str) -> None:
        """Raise the reason for a refused HEAD, whose answer has none."""
        with contextlib.suppress(PastTheEnd), self._explained(f"looking up {self.shown(key)}"):
            self._client.get_object(Bucket=self.name, Key=key, Range="bytes=0-0")["Body"].close()

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as failure:
            raise explain(failure, place=self._place, doing=doing) from failure
        except _UNREADABLE as failure:
            raise Transient(f"the answer is not S3's ({short(str(failure))})", doubtful=True) from failure


def _sendable(data: bytes) -> bytes | io.BytesIO:
    return data if len(data) <= _WHOLE_BODY_BYTES else io.BytesIO(data)


def _condition(etag: str) -> dict[str, str]:
    return {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}


def _crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def _found(key: str, answer: Mapping[str, Any], size: int) -> Found:
    if "ETag" not in answer or "LastModified" not in answer:
        raise StoreError(
            f"the answer for {key!r} has no ETag or no Last-Modified, so a bastion cannot work on this storage service"
        )
    etag = answer["ETag"]
    meta = _meta(key, size, etag, answer["LastModified"].timestamp())
    return Found(meta=meta, stamp=Stamp.of(answer.get("Metadata") or {}), etag=etag)


def _meta(key: str, size: int, etag: str, modified: float) -> ObjectMeta:
    # HEAD tells whole seconds; some services list fractions.
    seconds = float(int(modified))
    return ObjectMeta(key=key, size=size, generation=generation_of(etag, seconds), updated=seconds)


def _date(answer: Mapping[str, Any]) -> float:
    try:
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        return email.utils.parsedate_to_datetime(headers["date"]).timestamp()
    except (LookupError, TypeError, ValueError, OverflowError):
        return 0.0
