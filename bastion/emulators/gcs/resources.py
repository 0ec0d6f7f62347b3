"""Objects, their attributes and preconditions: the interface between the APIs and the storage.

The APIs know no files, and the storage knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class StorageError(Exception):
    """A request that the storage refuses; the API maps it to a status and a reason."""


class NoSuchBucket(StorageError):
    """404: no such bucket."""


class BucketExists(StorageError):
    """409: the bucket already exists."""


class BucketNotEmpty(StorageError):
    """409: only an empty bucket can be deleted."""


class NoSuchObject(StorageError):
    """404: no such object (or generation)."""


class NoSuchUpload(StorageError):
    """404 or 410: the resumable session is unknown, cancelled, or finished and forgotten."""


class ConditionFailed(StorageError):
    """412: a precondition does not hold."""


class NotPermitted(StorageError):
    """401 or 403: the caller lacks a permission. `caller` is empty for anonymous ones, `kind` that of the resource."""

    def __init__(self, caller: str, permission: str, kind: str) -> None:
        super().__init__(f"{caller or 'an anonymous caller'} lacks {permission} on the {kind}")
        self.caller = caller
        self.permission = permission
        self.kind = kind


class UnknownToken(StorageError):
    """401: nobody has this access token."""


class NoSuchManagedFolder(StorageError):
    """404: no such managed folder."""


class ManagedFolderExists(StorageError):
    """409: the managed folder already exists."""


class ManagedFolderNotEmpty(StorageError):
    """409: objects or managed folders are below it."""


class NotModified(ConditionFailed):
    """304: a `...NotMatch` precondition does not hold, for reads and changes."""


class InvalidRequest(StorageError):
    """400: an argument is not valid; nothing changed."""


class ChecksumMismatch(InvalidRequest):
    """400: the bytes do not match the declared checksums; nothing was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The attributes that a request sets; empty: not set.

    Keys of `metadata` are spelled as the client did.
    """

    content_type: str = ""
    content_encoding: str = ""
    content_disposition: str = ""
    content_language: str = ""
    cache_control: str = ""
    storage_class: str = ""
    custom_time: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectResource:
    """One generation of one object.

    Attributes:
        generation: Positive; strictly increasing per name, across deletions.
        metageneration: 1 for a new generation, plus one per change of attributes.
        size: Stored bytes (compressed, for a gzipped object).
        crc32c: Of the stored bytes, an unsigned 32-bit number.
        md5: Of the stored bytes, 16 raw bytes; None for a composite object, and for a file that this endpoint did not
            write.
        component_count: Number of sources of a composite object; None for others.
        time_created: Of this generation, seconds since the epoch.
        updated: Last change of attributes, seconds since the epoch.
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    size: int
    crc32c: int
    md5: bytes | None
    component_count: int | None
    time_created: float
    updated: float
    attributes: Attributes


class Versions(Protocol):
    """What preconditions compare."""

    @property
    def generation(self) -> int: ...

    @property
    def metageneration(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """Preconditions; None: no condition. Generation 0 means "does not exist"."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, present: Versions | None) -> None:
        """Compare with the live object, or None. Raises ConditionFailed; for a `...NotMatch`, NotModified.

        Without a live object, every `generation_not_match` fails.
        """
        generation = 0 if present is None else present.generation
        metageneration = None if present is None else present.metageneration
        if self.generation_match is not None and self.generation_match != generation:
            raise ConditionFailed(f"the generation is {generation}, not the required {self.generation_match}")
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise ConditionFailed(
                f"the metageneration is {metageneration}, not the required {self.metageneration_match}"
            )
        if self.generation_not_match is not None:
            if present is None:
                raise NotModified("there is no live object, which a NotMatch precondition requires")
            if self.generation_not_match == generation:
                raise NotModified(f"the generation is {generation}, which the precondition excludes")
        if self.metageneration_not_match is not None and self.metageneration_not_match == metageneration:
            raise NotModified(f"the metageneration is {metageneration}, which the precondition excludes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing: objects and folded prefixes, each in the order of their UTF-8 bytes."""

    items: tuple[ObjectResource, ...]
    prefixes: tuple[str, ...]
    next_page_token: str = ""
