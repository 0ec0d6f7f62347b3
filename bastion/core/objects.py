"""What a listing of the bucket tells about one object."""

from __future__ import annotations

from dataclasses import dataclass


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
