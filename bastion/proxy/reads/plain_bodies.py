"""Decrypt an answer with sealed segments into a response's body.

Two reused buffers of a few segments (one, under load) bound the memory. Only authenticated bytes are passed on; wrong
or missing bytes raise, so a truncated body never looks complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bastion.proxy.memory import MemoryBudget
from bastion.proxy.sealed.sealing import SealBroken, Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENT_BYTES, TAG_BYTES, SealedRange, segment_count
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable

# Larger pieces cost memory and are hardly faster.
_SEGMENTS_AT_ONCE = 4
# DEL
_EACH_BYTES = 2 * SEGMENT_BYTES


class PlainBody:
    """A range of an object's plaintext; owns the answer. A piece is valid until the next.

    The constructor authenticates the first segment; if it raises, the answer is closed.
    """

    def __init__(
        self,
        answer: Answer,
        sealing: Sealing,
        wanted: SealedRange,
        *,
        length: int,
        plain: int,
        memory: MemoryBudget | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Args:
            answer: Its body is the sealed bytes of `wanted`.
            length: Plaintext bytes of the range.
            plain: Plaintext bytes of the object.
            memory: Lends the buffers until the body is closed; None: not counted.
            on_end: Called when the last segment, and so `plain`, is authenticated.

        Raises:
            SealBroken: The first segment was changed.
            UpstreamUnavailable: The first segment did not arrive complete.
        """
        self._answer = answer
        self._sealing = sealing
        self._wanted = wanted
        self._last_of_object = segment_count(plain) - 1
        self._on_end = on_end
        self._sealed_left = wanted.length
        self._plain_left = length
        self._memory = memory or MemoryBudget()
        segments = min(wanted.last - wanted.first + 1, _SEGMENTS_AT_ONCE)
        self._borrowed = self._memory.borrow(most=segments * _EACH_BYTES, least=_EACH_BYTES, step=_EACH_BYTES)
        self._at_once = self._borrowed // _EACH_BYTES
        size = min(wanted.length, self._at_once * SEGMENT_BYTES)
        self._sealed = memoryview(bytearray(size))
        self._plain = memoryview(bytearray(size))
        self._next = wanted.first
        try:
            self._first = self._opened(1)[wanted.skip :][:length]
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[memoryview]:
        piece = self._first
        while True:
            if len(piece):
                self._plain_left -= len(piece)
                yield piece
            missing = self._wanted.last - self._next + 1
            if missing <= 0:
                break
            piece = self._opened(min(missing, self._at_once))[: self._plain_left]

    def close(self) -> None:
        """Close the answer and return the memory; idempotent."""
        self._answer.close()
        borrowed, self._borrowed = self._borrowed, 0
        self._memory.give_back(borrowed)

    @property
    def beginning(self) -> memoryview:
        """The first piece, available before iteration."""
        return self._first

    def _opened(self, count: int) -> memoryview:
        size = min(count * SEGMENT_BYTES, self._sealed_left)
        sealed = self._sealed[:size]
        if self._answer.readinto(sealed) != size:
            raise UpstreamUnavailable("the service's answer ended before the object did; try again")
        self._sealed_left -= size
        filled = 0
        for start in range(0, size, SEGMENT_BYTES):
            segment = sealed[start : start + SEGMENT_BYTES]
            if self._next == 0:
                segment = self._without_header(segment)
            length = max(len(segment) - TAG_BYTES, 0)
            self._sealing.open_into(
                self._next, segment, self._plain[filled : filled + length], last=self._next == self._last_of_object
            )
            filled += length
            self._next += 1
        if self._next > self._last_of_object and self._on_end is not None:
            self._on_end()
        return self._plain[:filled]

    def _without_header(self, segment: memoryview) -> memoryview:
        if segment[:HEADER_BYTES] != self._sealing.header:
            raise SealBroken("the object's content does not match its metadata; someone replaced one of them")
        return segment[HEADER_BYTES:]
