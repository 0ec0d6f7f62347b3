"""What a key may be, and what a listing of the bucket tells about one object."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core import limits

_FORBIDDEN = re.compile(r"[\0\r\n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object's metadata.

    Attributes:
        key: The object's key, relative to the store's root.
        size: Bytes.
        generation: Positive; a new one for every change of the content. Two contents never share one.
        updated: Seconds since the epoch by the store's own clock, of this generation.
    """

    key: str
    size: int
    generation: int
    updated: float


def check_key(key: str) -> None:
    """Refuses what no store could hold as a key.

    Raises:
        ValueError: the key is empty, over 1024 bytes of UTF-8, not UTF-8 at all, or holds NUL, CR or LF.
    """
    if not key:
        raise ValueError("an object's key must not be empty")
    if _FORBIDDEN.search(key):
        raise ValueError(f"the key {key[:80]!r} holds NUL, CR or LF; no object can have it")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the key {key[:80]!r} is not UTF-8: {error.reason}") from error
    if size > limits.OBJECT_KEY_MAX_BYTES:
        raise ValueError(f"the key {key[:80]!r}... has {size} bytes; {limits.OBJECT_KEY_MAX_BYTES} are the most")
