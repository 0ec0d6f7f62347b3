"""Where each byte of a plaintext lies in its sealed form, and back: arithmetic only.

Layer: proxy, pure. A sealed object is a row of segments of 256 KiB, the last one shorter or as long. Each ends in a tag
of 16 bytes, and the first begins with a header of 40; what is left of a segment is plaintext. There is always a last
segment, so an empty plaintext has one segment, without any plaintext; no other segment is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of a whole sealed segment. Equal to the step in which the storage API commits resumable uploads.
SEGMENT_BYTES = 262144
TAG_BYTES = 16
HEADER_BYTES = 40
# Segments are numbered in four bytes.
SEGMENTS_MAX = 1 << 32

_INNER_BYTES = SEGMENT_BYTES - TAG_BYTES
_EMPTY_BYTES = HEADER_BYTES + TAG_BYTES
_PLAIN_MAX = _INNER_BYTES * SEGMENTS_MAX - HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRange:
    """What to read of a sealed object for a range of its plaintext.

    Attributes:
        first: Index of the first segment.
        last: Index of the last segment, inclusive.
        start: Offset of the first segment's first sealed byte (that of the header, if it is segment 0).
        length: Sealed bytes, whole segments.
        skip: Plaintext bytes of the first segment that come before the range.
    """

    first: int
    last: int
    start: int
    length: int
    skip: int


def segment_count(plain: int) -> int:
    """How many segments a plaintext of `plain` bytes takes; at least one.

    Raises:
        ValueError: no object can be so long.
    """
    if not 0 <= plain <= _PLAIN_MAX:
        raise ValueError(f"no object has {plain} bytes of plaintext: it is 0 to {_PLAIN_MAX}")
    return -(-(plain + HEADER_BYTES) // _INNER_BYTES)


def sealed_size(plain: int) -> int:
    """Bytes of the sealed form of `plain` bytes."""
    return plain + HEADER_BYTES + TAG_BYTES * segment_count(plain)


def plain_size(sealed: int) -> int:
    """Bytes of plaintext in `sealed` bytes.

    Raises:
        ValueError: nothing sealed has that size, so something was cut off or added.
    """
    count = -(-sealed // SEGMENT_BYTES)
    plain = sealed - HEADER_BYTES - TAG_BYTES * count
    if sealed < _EMPTY_BYTES or count > SEGMENTS_MAX or sealed_size(plain) != sealed:
        raise ValueError(f"no sealed object has {sealed} bytes: something was cut off or added")
    return plain


def plain_offset(index: int) -> int:
    """Offset in the plaintext at which segment `index` begins."""
    return 0 if index == 0 else index * _INNER_BYTES - HEADER_BYTES


def sealed_offset(index: int) -> int:
    """Offset in the sealed form at which segment `index` begins; segment 0 begins with the header."""
    return index * SEGMENT_BYTES


def plain_capacity(index: int) -> int:
    """The most bytes of plaintext that segment `index` holds, and what it holds if it is not the last."""
    return _INNER_BYTES - HEADER_BYTES if index == 0 else _INNER_BYTES


def plain_length(index: int, plain: int) -> int:
    """Bytes of plaintext in segment `index` of an object of `plain` bytes.

    Raises:
        ValueError: it has no such segment.
    """
    if not 0 <= index < segment_count(plain):
        raise ValueError(f"{plain} bytes of plaintext have no segment {index}")
    return min(plain - plain_offset(index), plain_capacity(index))


def segment_of(offset: int) -> int:
    """Index of the segment that holds the plaintext byte at `offset`."""
    return (offset + HEADER_BYTES) // _INNER_BYTES


def sealed_range(start: int, length: int, plain: int) -> SealedRange:
    """What to read for `length` bytes at `start` of a plaintext of `plain` bytes.

    Nothing of an empty plaintext is its one segment, so that whoever reads it checks it, too.

    Raises:
        ValueError: the range is empty (and the plaintext is not), or not within the plaintext.
    """
    if not (start >= 0 and start + length <= plain and length >= min(1, plain)):
        raise ValueError(f"{length} bytes at {start} are no range of {plain} bytes")
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
