"""What the storage endpoint knows of an object, what a request may set of it, and what it may demand of it.

Layer: emulator. The border between the API (`json_api`, `xml_api`) and the storage (`buckets`): the API knows no files,
the storage no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class StorageError(Exception):
    """Something that a request asked for is not so; the API turns it into a status and a reason."""


class NoSuchBucket(StorageError):
    """404: there is no folder of that name."""


class BucketExists(StorageError):
    """409: a bucket of that name is there already."""


class BucketNotEmpty(StorageError):
    """409: only an empty bucket can be deleted."""


class NoSuchObject(StorageError):
    """404: no object of that name (and generation)."""


class NoSuchUpload(StorageError):
    """404 or 410: the resumable session is not known, was cancelled, or is finished and forgotten."""


class ConditionFailed(StorageError):
    """412: a precondition does not hold."""


class NotModified(ConditionFailed):
    """304: a `...NotMatch` precondition does not hold, of a change as well as of a read."""


class InvalidRequest(StorageError):
    """400: an argument cannot be; nothing was changed."""


class ChecksumMismatch(InvalidRequest):
    """400: the bytes that came are not those that the request declared; nothing was stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What a request sets of an object beside its bytes; empty strings mean "not set".

    Attributes:
        metadata: Custom metadata; keys as the client spelled them.
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
        generation: Positive; strictly increasing over the object's life, deletions included.
        metageneration: 1 for a new generation, one more for every change of its attributes.
        size: Stored bytes (of a gzipped object: the gzipped ones).
        crc32c: Of the stored bytes, as an unsigned 32-bit number.
        md5: Of the stored bytes, 16 raw bytes; None for a composite object, and for a file that came another way than
            through this endpoint.
        component_count: How many pieces a composite object was put together from; None if it is none.
        time_created: Of this generation, seconds since the epoch.
        updated: Of the last change of its attributes, seconds since the epoch.
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
    """What a request demands of the object as it is now; None: nothing. Generation 0 means "does not exist"."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, present: Versions | None) -> None:
        """Compares.

        Args:
            present: The live object; None if there is none.

        Raises:
            ConditionFailed: something demanded does not hold; if that is a `...NotMatch`, NotModified. Without a live
                object, every `generation_not_match` fails.
        """
        generation = 0 if present is None else present.generation
        metageneration = None if present is None else present.metageneration
        if self.generation_match is not None and self.generation_match != generation:
            raise ConditionFailed(f"the generation is {generation}, not {self.generation_match} as demanded")
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise ConditionFailed(
                f"the metageneration is {metageneration}, not {self.metageneration_match} as demanded"
            )
        if self.generation_not_match is not None:
            if present is None:
                raise NotModified("there is no live object, as every demand of another generation takes")
            if self.generation_not_match == generation:
                raise NotModified(f"the generation is {generation}, as it must not be")
        if self.metageneration_not_match is not None and self.metageneration_not_match == metageneration:
            raise NotModified(f"the metageneration is {metageneration}, as it must not be")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing: objects and folded prefixes, both in the order of their UTF-8 bytes."""

    items: tuple[ObjectResource, ...]
    prefixes: tuple[str, ...]
    next_page_token: str = ""
