"""Seal a plaintext that comes in pieces of any size, and compute checksums of both forms in one pass.

Invariant: the last segment is sealed only when the plaintext is complete and matches the client's declaration; without
it no object is created.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bastion.net.http1 import Body
from bastion.net.http1.messages import PIECE_BYTES
from bastion.proxy.sealed.crc32c import SummedMemory
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, TAG_BYTES, plain_capacity, plain_offset
from bastion.storage_wire.declared_sums import Declared
from bastion.storage_wire.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A boundary between two segments: the index of the next one, and the crc32c of all bytes before it.

    `sealed_crc32c` includes the header.
    """

    index: int = 0
    plain_crc32c: int = 0
    sealed_crc32c: int = 0


START = Edge()


class Plaintext:
    """A byte stream that one thread reads in sizes of its choice: `pieces`, then `length` bytes of `body` (None: all).

    What `pieces` raises reaches the reader.
    """

    def __init__(self, pieces: Iterable[bytes] = (), *, body: Body | None = None, length: int | None = None) -> None:
        # None: exhausted.
        self._pieces: Iterator[bytes] | None = iter(pieces)
        self._piece = memoryview(b"")
        self._body = body
        self._left = length

    @property
    def ended(self) -> bool:
        """Whether the stream has ended; waits for the next piece unless the length is known."""
        if self._left or self._piece:
            return False
        self._next()
        if self._piece:
            return False
        if self._body is None or self._left == 0:
            return True
        self._piece = memoryview(self._body.receive(PIECE_BYTES))
        return not self._piece

    def _next(self) -> None:
        for piece in self._pieces or ():
            if piece:
                self._piece = memoryview(piece)
                return
        self._pieces = None

    def readinto(self, view: memoryview) -> int:
        """Fill the view, with fewer bytes only at the end; return how many."""
        if self._pieces is None and not self._piece:
            return self._read_body(view)
        filled = 0
        while filled < len(view):
            if not self._piece:
                self._next()
            if not self._piece:
                return filled + self._read_body(view[filled:])
            count = min(len(view) - filled, len(self._piece))
            view[filled : filled + count] = self._piece[:count]
            self._piece = self._piece[count:]
            filled += count
        return filled

    def _read_body(self, view: memoryview) -> int:
        left = self._left
        if self._body is None or left == 0:
            return 0
        if left is None:
            return self._body.readinto(view)
        wanted = view if len(view) <= left else view[:left]
        count = self._body.readinto(wanted)
        # The body is shorter than announced.
        self._left = left - count if count == len(wanted) else 0
        return count

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        taken = bytearray(size)
        return bytes(memoryview(taken)[: self.readinto(memoryview(taken))])


class SealedStream:
    """The segments of one object, sealed in order in reused memory.

    Attributes:
        plain_size: Bytes sealed so far.
        complete: Whether the last segment was sealed.
        md5: Of the plaintext so far; None unless wanted, because it costs more than everything else.
    """

    def __init__(self, sealing: Sealing, *, edge: Edge = START, md5: Any = None, most: int | None = None) -> None:
        """`md5` is the hash object of the plaintext before the edge; `most` bounds a segment's plaintext."""
        self._sealing = sealing
        whole = plain_capacity(1)
        size = whole if most is None else min(whole, most)
        # Allocated once, because other threads wait while Python allocates.
        plain, sealed = bytearray(size), bytearray(HEADER_BYTES + size + TAG_BYTES)
        self._plain, self._plain_sums = memoryview(plain), SummedMemory(plain)
        # Space for the header precedes the first segment.
        self._sealed, self._sealed_sums = memoryview(sealed), SummedMemory(sealed)
        self._segment = self._sealed[HEADER_BYTES:]
        self._filled = 0
        self._index, self._plain_crc32c, self._sealed_crc32c = edge.index, edge.plain_crc32c, edge.sealed_crc32c
        self.plain_size = plain_offset(edge.index)
        self.complete = False
        self.md5 = md5

    @property
    def edge(self) -> Edge:
        """The edge after the last sealed segment."""
        return Edge(index=self._index, plain_crc32c=self._plain_crc32c, sealed_crc32c=self._sealed_crc32c)

    @property
    def plain(self) -> memoryview:
        """What was read for the next segment."""
        return self._plain[: self._filled]

    def read(self, plaintext: Plaintext) -> int:
        """Read the next segment's plaintext; return its size, less than a segment only at the end."""
        self._filled = plaintext.readinto(self._plain if self._index else self._plain[: plain_capacity(0)])
        return self._filled

    def seal(self, *, last: bool = False) -> memoryview:
        """Seal what was read, with the header if it is the first segment; valid until the next segment."""
        size, plain, sealed = self._filled, self._plain, self._segment
        if size < len(plain):
            plain, sealed = plain[:size], sealed[: size + TAG_BYTES]
        self._sealing.seal_into(self._index, plain, sealed, last=last)
        begin, end = HEADER_BYTES, HEADER_BYTES + size + TAG_BYTES
        if self._index == 0:
            begin, sealed = 0, self._sealed[:end]
            sealed[:HEADER_BYTES] = self._sealing.header
        self._plain_crc32c = self._plain_sums.extended(self._plain_crc32c, 0, size)
        self._sealed_crc32c = self._sealed_sums.extended(self._sealed_crc32c, begin, end)
        if self.md5 is not None:
            self.md5.update(plain)
        self._index += 1
        self.plain_size += size
        self.complete = last
        return sealed

    def seal_last(self, declared: Declared) -> memoryview:
        """Seal the last segment. Raises Refusal (400) unless the plaintext matches `declared`."""
        sealed = self.seal(last=True)
        check(declared, self._plain_crc32c, self.md5)
        return sealed

    def rest(self, plaintext: Plaintext, declared: Declared) -> Iterator[memoryview]:
        """Yield the rest of a plaintext, sealed; each piece is valid until the next.

        Instead of the last piece, raises Refusal (400) if the plaintext does not match `declared`.
        """
        while True:
            self.read(plaintext)
            if plaintext.ended:
                yield self.seal_last(declared)
                return
            yield self.seal()


def md5_for(declared: Declared) -> Any:
    """Return a hash object if an md5 was declared, else None."""
    return None if declared.md5 is None else hashlib.md5(usedforsecurity=False)


def check(declared: Declared, crc32c: int, md5: Any) -> None:
    """Raise Refusal (400) if the checksums differ from the declared ones."""
    if declared.crc32c is not None and declared.crc32c != crc32c:
        raise _mismatch("crc32c")
    if declared.md5 is not None and md5.digest() != declared.md5:
        raise _mismatch("md5")


def _mismatch(name: str) -> Refusal:
    return Refusal(
        400,
        "invalid",
        f"The received bytes do not match the declared {name}; nothing was stored. Send them again.",
        code="BadDigest",
    )
