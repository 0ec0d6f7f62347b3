"""The memory budget of all upload and download buffers.

Buffers shrink as more are in use. The sum stays within the budget, except for each buffer's minimum, so nobody waits
for memory that a stalled connection holds.
"""

from __future__ import annotations

import mmap
import threading

from bastion.proxy.sealed.segments import SEGMENT_BYTES

# For each process of the proxy.
BUDGET_BYTES = 64 * 1024 * 1024
# The C library returns larger buffers to the kernel at once (`freed_memory`), and the kernel clears them.
_MAPPED_BYTES = 1024 * 1024


class MemoryBudget:
    """The budget of one process; thread-safe."""

    def __init__(self, total: int = BUDGET_BYTES) -> None:
        self._free = total
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Unborrowed bytes; negative if the minimums exceed the total."""
        return self._free

    def borrow(self, *, most: int, least: int, step: int = SEGMENT_BYTES) -> int:
        """Borrow half of the free bytes, within `least` and `most`, in steps; return how many. `give_back` returns
        them.
        """
        with self._lock:
            granted = max(least, min(most, self._free // 2 // step * step))
            self._free -= granted
            return granted

    def give_back(self, size: int) -> None:
        with self._lock:
            self._free += size


class Gathering:
    """Consecutive sealed segments, `least` to `most`, in reused, borrowed memory; `close` returns the memory."""

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
        return self._borrowed // SEGMENT_BYTES

    @property
    def full(self) -> bool:
        return self.size == self._borrowed

    @property
    def segments(self) -> list[memoryview]:
        """What was gathered; valid until `clear` or `close`."""
        gathered = self._memory[: self.size]
        return [gathered[at : at + SEGMENT_BYTES] for at in range(0, self.size, SEGMENT_BYTES)]

    def add(self, segment: memoryview) -> None:
        """Copy a segment; only the last one may be partial."""
        end = self.size + len(segment)
        self._memory[self.size : end] = segment
        self.size = end

    def clear(self) -> None:
        """Drop the segments; borrow more memory if there was too little."""
        self.size = 0
        if self._borrowed == self._most:
            return
        self.close()
        self._borrowed = self._budget.borrow(most=self._most, least=self._least)
        self._memory = _memory(self._borrowed)

    def close(self) -> None:
        """Return the memory; idempotent."""
        self._memory = memoryview(b"")
        self.size = 0
        borrowed, self._borrowed = self._borrowed, 0
        self._budget.give_back(borrowed)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _memory(size: int) -> memoryview:
    """Memory whose pages are allocated on first write, and freed with the last reference."""
    if size < _MAPPED_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
