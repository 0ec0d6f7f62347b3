"""Multipart uploads of the XML API: numbered parts in any order, possibly concurrent, then a list of them.

Parts are unnamed temporary files, which end with this process; clients then restart their upload.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import google_crc32c

from bastion.emulators.gcs.buckets import Bucket
from bastion.emulators.gcs.json_resources import md5_text
from bastion.emulators.gcs.resources import Attributes, ChecksumMismatch, NoSuchUpload, ObjectResource, Preconditions
from bastion.storage_wire.declared_sums import Declared, crc32c_text
from bastion.storage_wire.refusals import Refusal

PART_NUMBER_MAX = 10_000
PART_MIN_BYTES = 5 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One stored part; its `file` is read by offset only."""

    number: int
    size: int
    crc32c: int
    md5: bytes
    file: BinaryIO

    @property
    def etag(self) -> str:
        return f'"{self.md5.hex()}"'

    def pieces(self) -> Iterator[bytes]:
        offset = 0
        while offset < self.size:
            piece = os.pread(self.file.fileno(), _PIECE_BYTES, offset)
            if not piece:
                raise OSError(f"part {self.number} of a multipart upload ends before its {self.size} bytes")
            offset += len(piece)
            yield piece


@dataclass(slots=True, kw_only=True)
class MultipartUpload:
    """An active upload; `lock` guards `parts` and `over`."""

    bucket: str
    name: str
    attributes: Attributes
    parts: dict[int, Part] = field(default_factory=dict)
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class MultipartUploads:
    """Every active multipart upload of this process."""

    def __init__(self) -> None:
        self._uploads: dict[str, MultipartUpload] = {}

    def begin(self, bucket: str, name: str, attributes: Attributes) -> str:
        upload_id = secrets.token_urlsafe(24)
        self._uploads[upload_id] = MultipartUpload(bucket=bucket, name=name, attributes=attributes)
        return upload_id

    def find(self, upload_id: str, bucket: str, name: str) -> MultipartUpload:
        """Find the upload of that object. Raises NoSuchUpload if it is over, or an earlier process had it."""
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            raise NoSuchUpload("The requested upload was not found.")
        return upload

    def of_bucket(self, bucket: str) -> list[tuple[str, MultipartUpload]]:
        """Ids and uploads, by object."""
        under_way = [
            (upload_id, upload) for upload_id, upload in list(self._uploads.items()) if upload.bucket == bucket
        ]
        return sorted(under_way, key=lambda item: (item[1].name.encode(), item[0]))

    def end(self, upload_id: str, upload: MultipartUpload) -> None:
        with upload.lock:
            upload.over = True
            for part in upload.parts.values():
                part.file.close()
            upload.parts.clear()
        self._uploads.pop(upload_id, None)


def put_part(upload: MultipartUpload, number: int, pieces: Iterable[bytes], declared: Declared) -> Part:
    """Store a part; a later one with the same number replaces it.

    Raises ChecksumMismatch if the bytes do not match the declared checksums, NoSuchUpload if the upload ended
    meanwhile.
    """
    file = tempfile.TemporaryFile(prefix="bastion-gcs-part-")  # noqa: SIM115
    try:
        part = _written(file, number, pieces)
        _check(part, declared)
        with upload.lock:
            if upload.over:
                raise NoSuchUpload("The upload ended before this part arrived.")
            replaced = upload.parts.get(number)
            upload.parts[number] = part
    except BaseException:
        file.close()
        raise
    if replaced is not None:
        replaced.file.close()
    return part


def _written(file: BinaryIO, number: int, pieces: Iterable[bytes]) -> Part:
    crc32c = 0
    md5 = hashlib.md5(usedforsecurity=False)
    size = 0
    for piece in pieces:
        file.write(piece)
        crc32c = google_crc32c.extend(crc32c, piece)
        md5.update(piece)
        size += len(piece)
    file.flush()
    return Part(number=number, size=size, crc32c=crc32c, md5=md5.digest(), file=file)


def _check(part: Part, declared: Declared) -> None:
    if declared.crc32c is not None and declared.crc32c != part.crc32c:
        raise ChecksumMismatch(
            f'Provided CRC32C "{crc32c_text(declared.crc32c)}" doesn\'t match calculated CRC32C '
            f'"{crc32c_text(part.crc32c)}".'
        )
    if declared.md5 is not None and declared.md5 != part.md5:
        raise ChecksumMismatch(
            f'Provided MD5 hash "{md5_text(declared.md5)}" doesn\'t match calculated MD5 hash "{md5_text(part.md5)}".'
        )


def complete(
    upload: MultipartUpload,
    wanted: Sequence[tuple[int, str]],
    bucket: Bucket,
    preconditions: Preconditions,
    declared: Declared,
) -> ObjectResource:
    """Make the object of the wanted parts (number and entity tag), in the order of their numbers.

    Raises Refusal (400) if a part is missing, out of order, different, or too small; StorageError if a precondition or
    checksum does not match.
    """
    with upload.lock:
        if upload.over:
            raise NoSuchUpload("The requested upload was not found.")
        parts = _chosen(upload, wanted)
        with bucket.stage() as staging:
            for part in parts:
                for piece in part.pieces():
                    staging.write(piece)
            return bucket.commit(upload.name, staging, upload.attributes, preconditions, declared=declared)


def _chosen(upload: MultipartUpload, wanted: Sequence[tuple[int, str]]) -> list[Part]:
    numbers = [number for number, _ in wanted]
    if not numbers:
        raise Refusal(400, "invalid", "The list of parts is empty.", code="MalformedXML")
    if numbers != sorted(set(numbers)):
        raise Refusal(400, "invalid", "The list of parts was not in ascending order.", code="InvalidPartOrder")
    parts = []
    for number, etag in wanted:
        part = upload.parts.get(number)
        if part is None or part.etag.strip('"') != etag.strip().strip('"'):
            raise Refusal(400, "invalid", f"Part {number} was not found, or its ETag differs.", code="InvalidPart")
        parts.append(part)
    for part in parts[:-1]:
        if part.size < PART_MIN_BYTES:
            raise Refusal(
                400,
                "invalid",
                f"Part {part.number} has {part.size} bytes; all but the last need at least {PART_MIN_BYTES}.",
                code="EntityTooSmall",
            )
    return parts
