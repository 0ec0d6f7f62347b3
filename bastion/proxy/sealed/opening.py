"""Decrypt a whole sealed object from a file or pipe, holding two segments at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from bastion.core.errors import SealBroken
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENT_BYTES


def opened(source: BinaryIO, sealing: Sealing) -> Iterator[bytes]:
    """Yield the plaintext in authenticated pieces. Only after the last one is it known to be complete.

    Args:
        source: Buffered, at the beginning of the sealed form.
        sealing: Of the object's key and the header in its envelope.

    Raises:
        SealBroken: The data was changed or truncated. Earlier pieces are authentic.
    """
    segment = source.read(SEGMENT_BYTES)
    if segment[:HEADER_BYTES] != sealing.header:
        raise SealBroken("the file does not belong to this metadata: the headers differ")
    sealed = memoryview(segment)[HEADER_BYTES:]
    index = 0
    while True:
        # The last segment may be full: only what follows tells.
        following = source.read(SEGMENT_BYTES)
        yield sealing.open(index, sealed, last=not following)
        if not following:
            return
        sealed = memoryview(following)
        index += 1
