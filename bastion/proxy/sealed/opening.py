"""Decrypt a whole sealed object from a file or pipe, holding two segments at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from bastion.core.errors import SealBroken
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENT_BYTES


def opened(source: BinaryIO, sealing: Sealing) -> Iterator[bytes]:
    """Yield the plaintext of `source`, buffered and at its beginning, in authenticated pieces.

    Raises SealBroken if the data was changed or truncated. The plaintext is known to be complete only after the last
    piece.
    """
    segment = source.read(SEGMENT_BYTES)
    if segment[:HEADER_BYTES] != sealing.header:
        raise SealBroken("the file does not belong to this metadata: the headers differ")
    sealed = memoryview(segment)[HEADER_BYTES:]
    index = 0
    while True:
        # The last segment may be full, so look for a next one.
        following = source.read(SEGMENT_BYTES)
        yield sealing.open(index, sealed, last=not following)
        if not following:
            return
        sealed = memoryview(following)
        index += 1
