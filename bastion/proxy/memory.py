"""How much memory the buffers of uploads and downloads take, all together.

A buffer is as large as is useful while few are in use, and smaller while many are. So nobody waits for memory that
another client's stalled connection holds, and the sum stays within a budget, but for the least of each.
"""

from __future__ import annotations

import mmap
import threading

from bastion.proxy.sealed.segments import SEGMENT_BYTES

# Of each of the proxy's processes.
BUDGET_BYTES = 64 * 1024 * 1024
# The C library gives back what is larger at once (`bastion.proxy.serving.freed_memory`), but first clears all of it.
_MAPPED_BYTES = 1024 * 1024


class MemoryBudget:
    """What the buffers of one process may take; safe to use from many threads."""

    def __init__(self, total: int = BUDGET_BYTES) -> None:
        self._free = total
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Bytes that nobody has borrowed; below 0 where the least of all is more than the total."""
        return self._free

    def borrow(self, *, most: int, least: int, step: int = SEGMENT_BYTES) -> int:
        """Take between `least` and `most` bytes: half of what is free, in steps; returns how many.

        Whoever borrows gives back as much.
        """
        with self._lock:
            granted = max(least, min(most, self._free // 2 // step * step))
            self._free -= granted
            return granted

    def give_back(self, size: int) -> None:
        with self._lock:
            self._free += size


class Gathering:
    """Sealed segments in a row, in borrowed memory that is used again and again; `close` gives it back.

    Args:
        most: Segments that are useful at once.
        least: Segments that there must be room for.
    """

    def __init__(self, budget: MemoryBudget, *, most: int, least: int) -> None:
        self._budget = budget
        self._most = most * SEGMENT_BYTES
        self._least = min(most, least) * SEGMENT_BYTES
        self._borrowed = 0
        self._memory = memoryview(b"")
        self.size = 0
        self.clear()

    @property
    def capacity(self) -> int:
        """In segments."""
        return self._borrowed // SEGMENT_BYTES

    @property
    def full(self) -> bool:
        return self.size == self._borrowed

    @property
    def segments(self) -> list[memoryview]:
        """What was gathered; good until `clear` or `close`."""
        gathered = self._memory[: self.size]
        return [gathered[at : at + SEGMENT_BYTES] for at in range(0, self.size, SEGMENT_BYTES)]

    def add(self, segment: memoryview) -> None:
        """Copy a segment; none follows one that is not whole."""
        end = self.size + len(segment)
        self._memory[self.size : end] = segment
        self.size = end

    def clear(self) -> None:
        """Begin anew, with more memory where there was not all that is useful."""
        self.size = 0
        if self._borrowed == self._most:
            return
        self.close()
        self._borrowed = self._budget.borrow(most=self._most, least=self._least)
        self._memory = _memory(self._borrowed)

    def close(self) -> None:
        """May be called twice."""
        self._memory = memoryview(b"")
        self.size = 0
        borrowed, self._borrowed = self._borrowed, 0
        self._budget.give_back(borrowed)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _memory(size: int) -> memoryview:
    """Memory whose pages are taken when they are first written, and given back with the last reference."""
    if size < _MAPPED_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
