"""`Range` of a read, and `Content-Range` of an upload's chunk. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.storage_wire.refusals import invalid, not_satisfiable

_RANGE = re.compile(r"bytes\s*=\s*([0-9]*)\s*-\s*([0-9]*)\s*", re.IGNORECASE)
_OFFSET_DIGITS = 18
_OFFSET_MAX = 2**63 - 1
_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d{1,19})-(\d{1,19}|\*)|\*)/(\d{1,19}|\*)\s*", re.IGNORECASE)


def read_range(header: str, size: int) -> tuple[int, int] | None:
    """Return offset and length of a read from the value of `Range`; None: the whole object.

    A header other than one valid byte range counts as none, like in the service. Raises Refusal (416) if the range
    begins past the end, always so for an empty object.
    """
    matched = _RANGE.fullmatch(header.strip()) if header else None
    if matched is None:
        return None
    first, last = map(_offset, matched.groups())
    if first is not None:
        if last is not None and last < first:
            return None
        if first >= size:
            raise not_satisfiable(size)
        end = size if last is None else min(last + 1, size)
        return first, end - first
    if last is None:
        return None
    length = min(last, size)
    if length == 0:
        raise not_satisfiable(size)
    return size - length, length


def _offset(digits: str) -> int | None:
    """Return a number of any length, capped at 64 bits, beyond every object's end."""
    digits = digits.lstrip("0") or digits[:1]
    if not digits:
        return None
    return int(digits) if len(digits) <= _OFFSET_DIGITS else _OFFSET_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """The bytes of a request of a resumable session."""

    start: int | None  # offset of the first byte; None: no bytes, a status request or the end
    length: int | None  # number of bytes; None: unknown
    total: int | None  # size of the whole object; None: unknown


def chunk_range(header: str) -> ChunkRange:
    """Parse `Content-Range`; without it a request brings the whole object. Raises Refusal (400)."""
    if not header:
        return ChunkRange(start=0, length=None, total=None)
    matched = _CONTENT_RANGE.fullmatch(header.strip())
    if matched is None:
        raise invalid(f"Failed to parse the Content-Range header {header[:80]!r}.")
    first, last, whole = matched.groups()
    total = None if whole == "*" else int(whole)
    if first is None:
        return ChunkRange(start=None, length=None, total=total)
    start = int(first)
    length = None if last == "*" else int(last) + 1 - start
    if length is not None and (length <= 0 or (total is not None and start + length > total)):
        raise invalid(f"The Content-Range header {header[:80]!r} contradicts itself.")
    return ChunkRange(start=start, length=length, total=total)
