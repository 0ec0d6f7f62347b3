"""Rules for keys, and the metadata of an object in a listing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.errors import ObjectTooLarge

_FORBIDDEN = re.compile(r"[\0\r\n]")
# Names that Cloud Storage refuses; the second serves proofs of domain ownership.
_RESERVED = frozenset({".", ".."})
_RESERVED_PREFIX = ".well-known/acme-challenge/"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """Of an object that is a file: the Unix user who owns it, its mode, and how many names it has."""

    uid: int
    mode: int
    links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object's metadata."""

    key: str  # relative to the store's root
    size: int  # bytes
    generation: int  # positive, at most 63 bits, and new for every change of the content
    # Seconds since the epoch by the store's clock; from `ObjectStore.get` possibly rounded down to the second.
    updated: float
    file: FileFacts | None = None  # of objects in inboxes of a folder bucket


def check_key(key: str) -> None:
    """Refuse a key that no store could hold; raises ValueError."""
    if not key:
        raise ValueError("an object's key must not be empty")
    if key in _RESERVED or key.startswith(_RESERVED_PREFIX):
        raise ValueError(f"the key {key[:80]!r} is reserved by Cloud Storage")
    _check_characters(key)


def has_line_end(key: str) -> bool:
    """Whether a listed name, as some stores allow, is no key."""
    return "\n" in key or "\r" in key


def can_begin_key(prefix: str) -> bool:
    """Whether a key can have this prefix."""
    try:
        _check_characters(prefix)
    except ValueError:
        return False
    return not prefix.startswith(_RESERVED_PREFIX)


def check_read_size(shown: str, size: int, max_bytes: int) -> None:
    """Refuse to read more than `max_bytes` of an object; raises ObjectTooLarge."""
    if size > max_bytes:
        raise ObjectTooLarge(f"{shown} has {size} bytes to read; the maximum is {max_bytes}")


def check_start(start: int) -> None:
    """Refuse a negative offset; raises ValueError."""
    if start < 0:
        raise ValueError(f"start is {start}; it counts from the beginning of the object")


def check_size(size: int) -> None:
    """Refuse a range without bytes; raises ValueError."""
    if size < 1:
        raise ValueError(f"size is {size}; a range has at least one byte")


def _check_characters(key: str) -> None:
    if _FORBIDDEN.search(key):
        raise ValueError(f"the key {key[:80]!r} must not contain NUL, CR or LF")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the key {key[:80]!r} is not UTF-8: {error.reason}") from error
    if size > limits.OBJECT_KEY_MAX_BYTES:
        raise ValueError(f"the key {key[:80]!r}... is {size} bytes long; the maximum is {limits.OBJECT_KEY_MAX_BYTES}")
