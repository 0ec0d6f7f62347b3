"""The load of each process of the proxy, in memory that all of them share."""

from __future__ import annotations

import mmap
import threading

_NUMBER_BYTES = 8


class Workload:
    """The number of active storage requests in each process. Make it before forking."""

    def __init__(self, processes: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, processes * _NUMBER_BYTES)).cast("q")

    def at_hand(self, process: int) -> int:
        return self._numbers[process]

    def counter(self, process: int) -> WorkloadCounter:
        return WorkloadCounter(self._numbers[process : process + 1])


class WorkloadCounter:
    """One process's number, written by that process only; thread-safe."""

    def __init__(self, number: memoryview | None = None) -> None:
        self._number = memoryview(bytearray(_NUMBER_BYTES)).cast("q") if number is None else number
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._number[0] += 1

    def end(self) -> None:
        """Count a request as answered, to the last byte."""
        with self._lock:
            self._number[0] -= 1
