"""The plaintext of a whole sealed object, from a file or a pipe, a segment at a time.

Layer: proxy. For who has the bytes and not the proxy: it holds two segments, whatever the object's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from bastion.core.errors import SealBroken
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENT_BYTES


def opened(source: BinaryIO, sealing: Sealing) -> Iterator[bytes]:
    """The plaintext in pieces, each of them checked; that nothing is missing is known after the last one.

    Args:
        source: Buffered, at the beginning of the sealed form.
        sealing: Of the object's key and the header in its envelope.

    Raises:
        SealBroken: this is not what was sealed. What came before is as it was sealed, but it is not all.
    """
    segment = source.read(SEGMENT_BYTES)
    if segment[:HEADER_BYTES] != sealing.header:
        raise SealBroken("these are not the bytes that the metadata belongs to: their headers differ")
    sealed = memoryview(segment)[HEADER_BYTES:]
    index = 0
    while True:
        # The last segment may be a whole one: only what follows tells.
        following = source.read(SEGMENT_BYTES)
        yield sealing.open(index, sealed, last=not following)
        if not following:
            return
        sealed = memoryview(following)
        index += 1
