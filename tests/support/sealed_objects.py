"""Whole objects sealed and opened segment by segment, as the proxy does it, for tests."""

from __future__ import annotations

from bastion.proxy.sealed import segments
from bastion.proxy.sealed.sealing import Sealing


def seal(sealing: Sealing, plain: bytes) -> bytes:
    """The sealed form, header included."""
    count = segments.segment_count(len(plain))
    view = memoryview(plain)
    pieces = [sealing.header]
    for index in range(count):
        start = segments.plain_offset(index)
        piece = view[start : start + segments.plain_length(index, len(plain))]
        pieces.append(sealing.seal(index, piece, last=index == count - 1))
    return b"".join(pieces)


def open_(key: bytes, sealed: bytes) -> bytes:
    """The plaintext of a whole sealed form.

    Raises:
        SealBroken: it is not whole.
        ValueError: nothing sealed has that size.
    """
    plain = segments.plain_size(len(sealed))
    return open_range(Sealing(key, sealed[: segments.HEADER_BYTES]), sealed, 0, plain, plain)


def open_range(sealing: Sealing, sealed: bytes, start: int, length: int, plain: int) -> bytes:
    """A range of the plaintext, from the segments that it needs and nothing else of `sealed`."""
    wanted = segments.sealed_range(start, length, plain)
    read = memoryview(sealed)[wanted.start : wanted.start + wanted.length]
    assert len(read) == wanted.length
    last = segments.segment_count(plain) - 1
    opened = []
    for index in range(wanted.first, wanted.last + 1):
        at = segments.sealed_offset(index) - wanted.start
        piece = read[at : at + segments.SEGMENT_BYTES]
        if index == 0:
            piece = piece[segments.HEADER_BYTES :]
        opened.append(sealing.open(index, piece, last=index == last))
    return b"".join(opened)[wanted.skip : wanted.skip + length]
