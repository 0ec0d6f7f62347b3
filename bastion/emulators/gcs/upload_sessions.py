"""The state of a resumable upload on disk, besides its bytes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.objects import Bucket
from bastion.emulators.gcs.opened_bucket import OpenedBucket, explained
from bastion.emulators.gcs.resources import Attributes, Preconditions
from bastion.emulators.gcs.sidecars import Sidecar, attributes_document, attributes_of
from bastion.folder_format import files, places
from bastion.storage_wire.declared_sums import Declared

_FOLDER = "uploads"
_SESSION_MAX_BYTES = 1 << 20
_NEEDS = "write and search permission on the bucket's .objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an upload ends; written before its bytes become the object, for a restart after a crash.

    Attributes:
        content: The name of the object's sidecar, which identifies the file.
        stamp: Of the object's file.
        generation: None before the object is visible.
    """

    content: str
    size: int
    stamp: int
    generation: int | None
    sidecar: Sidecar


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a client said when it began an upload, and how it ended.

    Attributes:
        size: Of the object; None: unknown so far.
        begun: Seconds since the epoch.
        caller: Who began; "" for anonymous callers.
        ending: None before the end.
    """

    name: str
    attributes: Attributes
    preconditions: Preconditions
    declared: Declared
    size: int | None
    begun: float
    caller: str = ""
    ending: Ending | None = None

    def encoded(self) -> bytes:
        demanded, declared, ending = self.preconditions, self.declared, self.ending
        document: dict[str, Any] = {
            "name": self.name,
            "attributes": attributes_document(self.attributes),
            "preconditions": {
                "generation_match": demanded.generation_match,
                "generation_not_match": demanded.generation_not_match,
                "metageneration_match": demanded.metageneration_match,
                "metageneration_not_match": demanded.metageneration_not_match,
            },
            "crc32c": declared.crc32c,
            "md5": None if declared.md5 is None else declared.md5.hex(),
            "size": self.size,
            "begun": self.begun,
            "caller": self.caller,
        }
        if ending is not None:
            document["ending"] = {
                "content": ending.content,
                "size": ending.size,
                "stamp": ending.stamp,
                "generation": ending.generation,
                "sidecar": ending.sidecar.document(),
            }
        return json.dumps(document, separators=(",", ":")).encode()

    @staticmethod
    def decoded(data: bytes) -> Session | None:
        """Parse a session; None if it is invalid."""
        try:
            document = json.loads(data)
            md5, ending = document["md5"], document.get("ending")
            return Session(
                name=document["name"],
                attributes=attributes_of(document["attributes"]),
                preconditions=Preconditions(**document["preconditions"]),
                declared=Declared(crc32c=document["crc32c"], md5=None if md5 is None else bytes.fromhex(md5)),
                size=document["size"],
                begun=float(document["begun"]),
                caller=document.get("caller", ""),
                ending=None if ending is None else _ending(ending),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def _ending(document: dict[str, Any]) -> Ending:
    return Ending(
        content=document["content"],
        size=document["size"],
        stamp=document["stamp"],
        generation=document["generation"],
        sidecar=Sidecar.of_document(document["sidecar"]),
    )


@contextlib.contextmanager
def uploads_folder(opened: OpenedBucket) -> Iterator[int]:
    """Open the folder of a bucket's uploads; create it if missing."""
    folder = files.open_folder(opened.hidden, (_FOLDER,), create=True)
    try:
        yield folder
    finally:
        os.close(folder)


def keep(bucket: Bucket, token: str, session: Session) -> None:
    """Write a session, replacing it."""
    with uploading(bucket), bucket.opened() as opened, uploads_folder(opened) as folder:
        sidecars.replace(opened.hidden, folder, f"{token}.json", session.encoded(), sync=bucket.fsync)


def kept(bucket: Bucket, token: str) -> Session | None:
    with uploading(bucket), bucket.opened() as opened, uploads_folder(opened) as folder:
        try:
            file = os.open(f"{token}.json", os.O_RDONLY | files.FILE, dir_fd=folder)
        except FileNotFoundError:
            return None
        try:
            return Session.decoded(os.read(file, _SESSION_MAX_BYTES))
        finally:
            os.close(file)


def sweep(bucket: Bucket, *, before_ns: int) -> None:
    """Remove the files of uploads not changed since `before_ns`."""
    with uploading(bucket), bucket.opened() as opened:
        places.remove_orphans(opened.hidden, before_ns=before_ns, name=_FOLDER)


def uploading(bucket: Bucket) -> contextlib.AbstractContextManager[None]:
    return explained("uploading into", str(bucket.path), _NEEDS)
