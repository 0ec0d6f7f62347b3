"""A cache of objects' descriptions and keys, so that the next read of an object takes one request.

Every read still asks the service for the remembered generation on behalf of the client; that finds outdated entries.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bastion.net.http1 import Headers
from bastion.proxy.sealed.envelope import Envelope, EnvelopeBroken
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import plain_size
from bastion.proxy.service.upstream import UpstreamUnavailable

_META = "x-goog-meta-"
# About 2 KiB each.
_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An object's opened keys, with crc32c and authenticated size of the plaintext; None: the envelope lacks it."""

    sealing: Sealing = field(repr=False)
    crc32c: int | None
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One generation of one object.

    Attributes:
        plain_bytes: The size that its owner sees.
        cache_control: As its owner set it; empty: the service's default.
        envelope: None for plaintext.
        opened: None until its key is needed.
        end_seen: Whether its last segment, and so `plain_bytes`, was authenticated.
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    stored_bytes: int
    plain_bytes: int
    cache_control: str
    envelope: Envelope | None
    opened: Opened | None = field(default=None, repr=False)
    end_seen: bool = False

    @property
    def is_sized(self) -> bool:
        """Whether `plain_bytes` is authenticated, after `KnownObjects.opened`."""
        return self.end_seen or (self.opened is not None and self.opened.size is not None)

    @classmethod
    def of_resource(cls, resource: Mapping[str, Any]) -> Known:
        """Parse a whole `storage#object`.

        Raises EnvelopeBroken if the envelope or the length was changed, UpstreamUnavailable if it is not a valid
        object.
        """
        try:
            return cls._of(
                bucket=str(resource["bucket"]),
                name=str(resource["name"]),
                generation=resource["generation"],
                metageneration=resource["metageneration"],
                # The service may omit zeros.
                stored_bytes=resource.get("size", 0),
                cache_control=str(resource.get("cacheControl", "")),
                metadata=resource.get("metadata") or {},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UpstreamUnavailable(f"the service described an object without {error}; try again") from error

    @classmethod
    def of_headers(cls, bucket: str, name: str, headers: Headers) -> Known:
        """Parse the XML API's answer to HEAD. Raises like `of_resource`."""
        metadata: dict[str, str] = {}
        for field_name, value in headers.items():
            lower = field_name.lower()
            if lower.startswith(_META):
                if lower in metadata:
                    raise EnvelopeBroken(f"the metadata has {lower} twice; someone changed it")
                metadata[lower] = value
        return cls._of(
            bucket=bucket,
            name=name,
            generation=headers.get("x-goog-generation"),
            metageneration=headers.get("x-goog-metageneration"),
            stored_bytes=headers.get("x-goog-stored-content-length"),
            cache_control=headers.get("cache-control"),
            metadata={lower.removeprefix(_META): value for lower, value in metadata.items()},
        )

    @classmethod
    def _of(
        cls,
        *,
        bucket: str,
        name: str,
        generation: str,
        metageneration: str,
        stored_bytes: str,
        cache_control: str,
        metadata: dict[str, str],
    ) -> Known:
        try:
            stored = int(stored_bytes)
            numbers = int(generation), int(metageneration)
        except (ValueError, OverflowError) as error:  # a JSON number may be infinite
            raise UpstreamUnavailable("the service described an object with invalid numbers; try again") from error
        envelope = Envelope.from_metadata(metadata)
        return cls(
            bucket=bucket,
            name=name,
            generation=numbers[0],
            metageneration=numbers[1],
            stored_bytes=stored,
            plain_bytes=stored if envelope is None else _plain_size(stored),
            cache_control=cache_control,
            envelope=envelope,
        )

    def opening(self, envelopes: Envelopes) -> Known:
        """A copy with `opened`; the object must be encrypted. Raises like `Envelopes.open`."""
        if self.envelope is None:
            return self
        key = envelopes.open(self.envelope, self.bucket, self.name)
        opened = Opened(
            sealing=Sealing(key, self.envelope.header),
            crc32c=envelopes.crc32c(self.envelope, key),
            size=envelopes.size(self.envelope, key),
        )
        return replace(self, opened=opened)


def _plain_size(stored: int) -> int:
    try:
        return plain_size(stored)
    except ValueError as error:
        raise EnvelopeBroken(str(error)) from error


class KnownObjects:
    """The newest known generations of up to `most` objects, in LRU order; thread-safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], Known] = OrderedDict()

    def get(self, bucket: str, name: str) -> Known | None:
        with self._lock:
            known = self._known.get((bucket, name))
            if known is not None:
                self._known.move_to_end((bucket, name))
            return known

    def remember(self, known: Known) -> Known:
        """Remember an object unless a newer generation is known. Return it, with `opened` if it was remembered."""
        place = known.bucket, known.name
        with self._lock:
            present = self._known.get(place)
            if present is not None:
                if present.envelope == known.envelope:
                    same = (present.generation, present.stored_bytes) == (known.generation, known.stored_bytes)
                    known = replace(
                        known,
                        opened=known.opened or present.opened,
                        end_seen=known.end_seen or (same and present.end_seen),
                    )
                if _version(present) > _version(known):
                    return known
            self._known[place] = known
            self._known.move_to_end(place)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return known

    def opened(self, known: Known, envelopes: Envelopes) -> Known:
        """Remember an object, with `opened` if it is encrypted; return it.

        Raises like `Envelopes.open`, and EnvelopeBroken if the object's length contradicts its envelope.
        """
        known = self.remember(known)
        if known.envelope is not None and known.opened is None:
            known = self.remember(known.opening(envelopes))
        size = None if known.opened is None else known.opened.size
        if size not in (None, known.plain_bytes):
            raise EnvelopeBroken(
                f"{known.name!r} in {known.bucket} has {known.plain_bytes} bytes, and {size} were stored: someone "
                "without the key truncated or replaced it"
            )
        return known

    def forget(self, bucket: str, name: str) -> None:
        with self._lock:
            self._known.pop((bucket, name), None)


def _version(known: Known) -> tuple[int, int]:
    return known.generation, known.metageneration
