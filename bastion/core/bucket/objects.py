"""What a key may be, and what a listing of the bucket tells about one object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.errors import ObjectTooLarge

_FORBIDDEN = re.compile(r"[\0\r\n]")
# Names that Cloud Storage refuses; the second belongs to those who prove that a domain is theirs.
_RESERVED = frozenset({".", ".."})
_RESERVED_PREFIX = ".well-known/acme-challenge/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object's metadata.

    Attributes:
        key: The object's key, relative to the store's root.
        size: Bytes.
        generation: Positive; a new one for every change of the content. Two contents never share one.
        updated: Seconds since the epoch by the store's own clock, of this generation. Told by `ObjectStore.get`, it
            may be rounded down to the second.
    """

    key: str
    size: int
    generation: int
    updated: float


def check_key(key: str) -> None:
    """Refuses what no store could hold as a key.

    Raises:
        ValueError: the key is empty, over 1024 bytes of UTF-8, not UTF-8 at all, holds NUL, CR or LF, or is one of
            the names that Cloud Storage refuses: `.`, `..`, and what begins with `.well-known/acme-challenge/`.
    """
    if not key:
        raise ValueError("an object's key must not be empty")
    if key in _RESERVED or key.startswith(_RESERVED_PREFIX):
        raise ValueError(f"the key {key[:80]!r} is reserved by Cloud Storage; no object can have it")
    _check_characters(key)


def can_begin_key(prefix: str) -> bool:
    """Whether any key begins so; the empty string begins every key."""
    try:
        _check_characters(prefix)
    except ValueError:
        return False
    return not prefix.startswith(_RESERVED_PREFIX)


def check_read_size(shown: str, size: int, max_bytes: int) -> None:
    """Refuses to take more bytes of an object into memory than its reader asked for.

    Raises:
        ObjectTooLarge: `size` is more than `max_bytes`.
    """
    if size > max_bytes:
        raise ObjectTooLarge(f"{shown} has {size} bytes to read; the maximum is {max_bytes}")


def _check_characters(key: str) -> None:
    if _FORBIDDEN.search(key):
        raise ValueError(f"the key {key[:80]!r} holds NUL, CR or LF; no object can have it")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the key {key[:80]!r} is not UTF-8: {error.reason}") from error
    if size > limits.OBJECT_KEY_MAX_BYTES:
        raise ValueError(f"the key {key[:80]!r}... has {size} bytes; {limits.OBJECT_KEY_MAX_BYTES} are the most")
