"""The daemon's thread pool: threads share a list of tasks, so that small requests do not cost a future each.

A task must not submit tasks: all threads might wait for another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ThreadPool:
    """A fixed number of threads. A pool of one uses the caller's thread: tests need a fixed order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="store")

    def each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return the results in the order of the items, once all have finished; raises the first error."""
        tasks = list(items)
        if not tasks:
            return []
        results: dict[int, R] = {}
        numbers = itertools.count()

        def work() -> None:
            # A count and a dict are thread-safe.
            while (number := next(numbers)) < len(tasks):
                results[number] = do(tasks[number])

        if self._size == 1:
            work()
            return [results[number] for number in range(len(tasks))]
        shares = [self._pool.submit(work) for _ in range(min(self._size, len(tasks)))]
        wait(shares)
        for share in shares:
            share.result()
        return [results[number] for number in range(len(tasks))]

    def dismiss(self) -> None:
        self._pool.shutdown(wait=True)
