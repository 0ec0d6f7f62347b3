"""Sidecars: an object's attributes in a separate file under the bucket's `.objects/attributes`.

A sidecar's name identifies its content by the hash of the key, and mtime, size and inode of the object's file. Our
writers give every file of a key a later time, so contents never share a sidecar. A new sidecar is written before its
content moves to its place, and the old one is removed after: a crash leaves a matching pair and one orphan. A file
without a sidecar (from `cp`, an editor or `DirectoryStore`) has default attributes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from bastion.core.instants import to_rfc3339
from bastion.emulators.gcs.resources import Attributes, InvalidRequest, ObjectResource
from bastion.folder_format import files, places
from bastion.folder_format.keys import hidden_name

FOLDER = "attributes"
_SIDECAR_MAX_BYTES = 64 * 1024
_TEXTS = tuple(field.name for field in fields(Attributes) if field.name != "metadata")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """The stored attributes of one generation, as in `ObjectResource`.

    `created` and `updated` are seconds since the epoch.
    """

    name: str
    crc32c: int
    md5: bytes | None
    component_count: int | None
    metageneration: int
    created: float
    updated: float
    attributes: Attributes

    def resource(self, bucket: str, *, generation: int, size: int) -> ObjectResource:
        return ObjectResource(
            bucket=bucket,
            name=self.name,
            generation=generation,
            metageneration=self.metageneration,
            size=size,
            crc32c=self.crc32c,
            md5=self.md5,
            component_count=self.component_count,
            time_created=self.created,
            updated=self.updated,
            attributes=self.attributes,
        )

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "crc32c": self.crc32c,
            "md5": None if self.md5 is None else self.md5.hex(),
            "componentCount": self.component_count,
            "metageneration": self.metageneration,
            "created": self.created,
            "updated": self.updated,
            "attributes": attributes_document(self.attributes),
        }

    @staticmethod
    def of_document(document: dict[str, Any]) -> Sidecar:
        """Parse the JSON form. Raises ValueError, KeyError, TypeError or OverflowError."""
        md5, count = document["md5"], document["componentCount"]
        return Sidecar(
            name=_text(document["name"]),
            crc32c=int(document["crc32c"]),
            md5=None if md5 is None else bytes.fromhex(md5),
            component_count=None if count is None else int(count),
            metageneration=int(document["metageneration"]),
            created=_instant(document["created"]),
            updated=_instant(document["updated"]),
            attributes=attributes_of(document["attributes"]),
        )

    def encoded(self) -> bytes:
        """The file's bytes. Raises InvalidRequest if there is more custom metadata than the service allows."""
        data = json.dumps(self.document(), separators=(",", ":")).encode()
        if len(data) > _SIDECAR_MAX_BYTES:
            raise InvalidRequest(f"The object's metadata takes {len(data)} bytes; the maximum is {_SIDECAR_MAX_BYTES}.")
        return data


def attributes_document(attributes: Attributes) -> dict[str, Any]:
    document: dict[str, Any] = {name: text for name in _TEXTS if (text := getattr(attributes, name))}
    if attributes.metadata:
        document["metadata"] = dict(attributes.metadata)
    return document


def attributes_of(document: dict[str, Any]) -> Attributes:
    """Parse attributes from JSON. Raises TypeError or ValueError."""
    texts = {name: _text(value) for name, value in document.items() if name != "metadata"}
    metadata = {_text(name): _text(value) for name, value in dict(document.get("metadata", {})).items()}
    return Attributes(**texts, metadata=metadata)


def _instant(value: object) -> float:
    """An instant that can be shown. Raises TypeError, ValueError or OverflowError."""
    if not isinstance(value, (int, float)):
        raise TypeError("not an instant")
    try:
        to_rfc3339(value)
    except OSError as error:  # the C library's calendar ends before Python's integers
        raise ValueError("not an instant") from error
    return float(value)


def _text(value: object) -> str:
    """A text that a header can have. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    value.encode()
    return value


# Keyed by content, so entries never become stale.
@lru_cache(maxsize=16_384)
def decoded(data: bytes) -> Sidecar | None:
    """Parse a sidecar; None if it is torn or foreign."""
    try:
        return Sidecar.of_document(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def sidecar_name(key: str, status: os.stat_result) -> str:
    return f"{hidden_name(key)}.{status.st_mtime_ns:x}.{status.st_size:x}.{status.st_ino:x}"


def read(folder: int | None, key: str, status: os.stat_result) -> Sidecar | None:
    """The sidecar of the content with that status, if any."""
    return None if folder is None else read_named(folder, sidecar_name(key, status))


def read_named(folder: int, name: str) -> Sidecar | None:
    try:
        file = os.open(name, os.O_RDONLY | files.FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in files.ABSENT:
            return None
        raise
    try:
        data = os.read(file, _SIDECAR_MAX_BYTES + 1)
    finally:
        os.close(file)
    return decoded(data)


def write_new(folder: int, name: str, data: bytes, *, sync: bool) -> None:
    """Write the sidecar of a content that is not visible yet, so nobody reads a part of it."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | files.FILE, files.FILE_MODE, dir_fd=folder)
    try:
        files.write_all(file, data)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)
    if sync:
        files.sync_folder(folder)


def replace(objects: int, folder: int, name: str, data: bytes, *, sync: bool) -> None:
    """Replace the sidecar of a visible content atomically."""
    with places.temporary(objects, data, sync=sync) as content:
        os.rename(content.name, name, src_dir_fd=content.folder, dst_dir_fd=folder)
    if sync:
        files.sync_folder(folder)


def remove(folder: int, key: str, status: os.stat_result) -> None:
    """Remove the sidecar of the content with that status, if any."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(sidecar_name(key, status), dir_fd=folder)


def sweep(root: int, folder: int, *, before_ns: int, until: float) -> None:
    """Remove sidecars without a content that are older than `before_ns`; the contents of younger ones may be about to
    appear.

    `root` is the bucket's open folder, `folder` that of the sidecars. Stops at `until` (monotonic); starts anywhere, so
    that several sweeps cover everything.
    """
    listing = files.open_listing(folder)
    try:
        with os.scandir(listing) as entries:
            names = [entry.name for entry in entries]
    finally:
        os.close(listing)
    start = random.randrange(len(names)) if names else 0
    for name in names[start:] + names[:start]:
        if time.monotonic() > until:
            return
        status = files.status_of(folder, name)
        if status is not None and status.st_ctime_ns < before_ns and not _is_live(root, folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


def _is_live(root: int, folder: int, name: str) -> bool:
    sidecar = read_named(folder, name)
    if sidecar is None:
        return False
    place = places.find(root, sidecar.name)
    if place is None:
        return False
    with place:
        return sidecar_name(sidecar.name, place.status) == name
