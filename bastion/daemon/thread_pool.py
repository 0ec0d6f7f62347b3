"""The daemon's threads: they share out a list of tasks, so that many small requests do not cost a future each.

A task must not hand out tasks of its own: every thread of the crew could wait for another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ThreadPool:
    """A fixed number of threads, and so of requests under way at a time.

    A crew of one works in the caller's thread: tests rely on the order of its requests.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="store")

    def each(self, do: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """What `do` returns for each item, in their order; returns when the last of them is through.

        Raises:
            Exception: the first that `do` raised. The others are through by then, too: none of them can still change
                what the caller goes on with.
        """
        tasks = list(items)
        if not tasks:
            return []
        results: dict[int, R] = {}
        numbers = itertools.count()

        def work() -> None:
            # A count and a dict are safe to share among threads.
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
        """Ends the threads."""
        self._pool.shutdown(wait=True)
