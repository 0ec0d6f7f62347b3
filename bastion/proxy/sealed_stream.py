"""A plaintext that comes in pieces of any size becomes sealed segments, with the checksums of both in the same pass.

Layer: proxy. Invariant: the last segment is sealed only when the plaintext is whole and is what the client declared; so
an object that waits for its last segment never comes into being from anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c

from bastion.proxy.sealing import Sealing
from bastion.proxy.segments import plain_capacity, plain_offset
from bastion.storage_api.declared_sums import Declared
from bastion.storage_api.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A place between two segments.

    Attributes:
        index: Of the segment that follows.
        plain_crc32c: Of the plaintext before it.
        sealed_crc32c: Of the sealed bytes before it, the header included.
    """

    index: int = 0
    plain_crc32c: int = 0
    sealed_crc32c: int = 0


START = Edge()


class Plaintext:
    """Bytes that come in pieces, read in the sizes that the reader wants.

    Args:
        pieces: As they come; what they raise goes on to the reader.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = memoryview(b"")

    @property
    def ended(self) -> bool:
        """Whether nothing more comes; waits for the next piece to know it."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._piece = memoryview(piece)
        return False

    def take(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        taken: list[memoryview] = []
        missing = size
        while missing and not self.ended:
            part = self._piece[:missing]
            self._piece = self._piece[missing:]
            taken.append(part)
            missing -= len(part)
        return b"".join(taken)


class SealedStream:
    """The segments of one object, sealed in their order.

    Attributes:
        edge: After the last segment that was sealed.
        plain_size: Bytes sealed so far.
        complete: Whether the last segment was sealed.
        md5: Of the plaintext so far; None: it is not wanted, for it costs more than all else together.
    """

    def __init__(self, sealing: Sealing, *, edge: Edge = START, md5: Any = None) -> None:
        """
        Args:
            md5: A hash object of what comes before the edge; it is changed.
        """
        self._sealing = sealing
        self.edge = edge
        self.plain_size = plain_offset(edge.index)
        self.complete = False
        self.md5 = md5

    @property
    def capacity(self) -> int:
        """Bytes of plaintext that the next segment holds unless it is the last."""
        return plain_capacity(self.edge.index)

    def seal(self, plain: bytes, *, last: bool) -> bytes:
        """The next segment; the header comes with the first."""
        edge = self.edge
        sealed = self._sealing.seal(edge.index, plain, last=last)
        if edge.index == 0:
            sealed = self._sealing.header + sealed
        self.edge = Edge(
            index=edge.index + 1,
            plain_crc32c=google_crc32c.extend(edge.plain_crc32c, plain),
            sealed_crc32c=google_crc32c.extend(edge.sealed_crc32c, sealed),
        )
        if self.md5 is not None:
            self.md5.update(plain)
        self.plain_size += len(plain)
        self.complete = last
        return sealed

    def seal_last(self, plain: bytes, declared: Declared) -> bytes:
        """The last segment, if all of the plaintext is what was declared.

        Raises:
            Refusal: 400, it is not.
        """
        sealed = self.seal(plain, last=True)
        check(declared, self.edge.plain_crc32c, self.md5)
        return sealed

    def rest(self, plaintext: Plaintext, declared: Declared) -> Iterator[bytes]:
        """All that is left of a plaintext, sealed, to its end.

        Raises (while it is read):
            Refusal: 400, in the place of the last segment: the plaintext is not what was declared.
        """
        while True:
            plain = plaintext.take(self.capacity)
            if plaintext.ended:
                yield self.seal_last(plain, declared)
                return
            yield self.seal(plain, last=False)


def md5_for(declared: Declared) -> Any:
    """A fresh hash object if an md5 was declared, else None."""
    return None if declared.md5 is None else hashlib.md5(usedforsecurity=False)


def check(declared: Declared, crc32c: int, md5: Any) -> None:
    """Holds what came against what was declared.

    Raises:
        Refusal: 400, they differ.
    """
    if declared.crc32c is not None and declared.crc32c != crc32c:
        raise _mismatch("crc32c")
    if declared.md5 is not None and md5.digest() != declared.md5:
        raise _mismatch("md5")


def _mismatch(name: str) -> Refusal:
    return Refusal(
        400,
        "invalid",
        f"The bytes that came do not have the {name} that was declared for them; nothing was stored. Send them again.",
        code="BadDigest",
    )
