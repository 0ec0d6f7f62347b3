"""The arithmetic between plaintext and sealed offsets. Pure.

A sealed object is a sequence of 256 KiB segments; the last may be shorter. Each ends in a tag of 16 bytes, and the
first begins with a header of 40. Only an empty plaintext has an empty segment, and only one.
"""

from __future__ import annotations

from dataclasses import dataclass

# A full sealed segment; equals the storage API's step of resumable uploads.
SEGMENT_BYTES = 262144
TAG_BYTES = 16
HEADER_BYTES = 40
# Segment numbers have four bytes.
SEGMENTS_MAX = 1 << 32

_INNER_BYTES = SEGMENT_BYTES - TAG_BYTES
_EMPTY_BYTES = HEADER_BYTES + TAG_BYTES
_PLAIN_MAX = _INNER_BYTES * SEGMENTS_MAX - HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRange:
    """What to read of a sealed object for a range of its plaintext.

    Attributes:
        last: Index of the last segment, inclusive.
        start: Sealed offset of the first segment (of the header, for segment 0).
        length: Sealed bytes, whole segments.
        skip: Plaintext bytes of the first segment before the range.
    """

    first: int
    last: int
    start: int
    length: int
    skip: int


def segment_count(plain: int) -> int:
    """The number of segments for `plain` bytes, at least one. Raises ValueError if there are too many."""
    if not 0 <= plain <= _PLAIN_MAX:
        raise ValueError(f"{plain} bytes is not a valid plaintext size: 0 to {_PLAIN_MAX}")
    return -(-(plain + HEADER_BYTES) // _INNER_BYTES)


def sealed_size(plain: int) -> int:
    return plain + HEADER_BYTES + TAG_BYTES * segment_count(plain)


def plain_size(sealed: int) -> int:
    """Plaintext bytes in `sealed` bytes. Raises ValueError for an impossible size."""
    count = -(-sealed // SEGMENT_BYTES)
    plain = sealed - HEADER_BYTES - TAG_BYTES * count
    if sealed < _EMPTY_BYTES or count > SEGMENTS_MAX or sealed_size(plain) != sealed:
        raise ValueError(f"{sealed} bytes is not a valid sealed size: the object was truncated or extended")
    return plain


def plain_offset(index: int) -> int:
    return 0 if index == 0 else index * _INNER_BYTES - HEADER_BYTES


def sealed_offset(index: int) -> int:
    """Sealed offset of a segment; segment 0 begins with the header."""
    return index * SEGMENT_BYTES


def plain_capacity(index: int) -> int:
    """The maximum plaintext bytes of a segment."""
    return _INNER_BYTES - HEADER_BYTES if index == 0 else _INNER_BYTES


def plain_length(index: int, plain: int) -> int:
    """Plaintext bytes of segment `index` in an object of `plain` bytes. Raises ValueError if it does not exist."""
    if not 0 <= index < segment_count(plain):
        raise ValueError(f"there is no segment {index} in {plain} bytes of plaintext")
    return min(plain - plain_offset(index), plain_capacity(index))


def segment_of(offset: int) -> int:
    return (offset + HEADER_BYTES) // _INNER_BYTES


def sealed_range(start: int, length: int, plain: int) -> SealedRange:
    """What to read for `length` bytes at `start` of a plaintext of `plain` bytes. Raises ValueError for an invalid
    range.

    An empty plaintext maps to its one segment, so that a reader authenticates it.
    """
    if not (start >= 0 and start + length <= plain and length >= min(1, plain)):
        raise ValueError(f"{length} bytes at {start} is not a range within {plain} bytes")
    first = segment_of(start)
    last = segment_of(max(start, start + length - 1))
    begin = sealed_offset(first)
    return SealedRange(
        first=first,
        last=last,
        start=begin,
        length=min(sealed_offset(last + 1), sealed_size(plain)) - begin,
        skip=start - plain_offset(first),
    )
