"""How much each process of the proxy has to do, where all of them can see it.

Layer: proxy. Memory that is shared when the processes fork: a number for each, which that process alone writes.
"""

from __future__ import annotations

import mmap
import threading

_NUMBER_BYTES = 8


class Workload:
    """How many requests to the storage service each process has at hand.

    Args:
        processes: How many there are; made before they fork.
    """

    def __init__(self, processes: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, processes * _NUMBER_BYTES)).cast("q")

    def at_hand(self, process: int) -> int:
        return self._numbers[process]

    def counter(self, process: int) -> WorkloadCounter:
        """What that process counts with."""
        return WorkloadCounter(self._numbers[process : process + 1])


class WorkloadCounter:
    """One process's number; many threads may change it."""

    def __init__(self, number: memoryview | None = None) -> None:
        self._number = memoryview(bytearray(_NUMBER_BYTES)).cast("q") if number is None else number
        self._lock = threading.Lock()

    def begin(self) -> None:
        """A request has come."""
        with self._lock:
            self._number[0] += 1

    def end(self) -> None:
        """It was answered, to the last byte."""
        with self._lock:
            self._number[0] -= 1
