"""Make several requests at once and return their answers in order.

A request to Cloud Storage takes 50 to 100 ms, so one at a time makes a long log slow.

Invariants:

* Each call is made exactly once; its answer or its `StoreError` keeps its place.
* Ctrl-C returns at once: requests under way are left to daemon threads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from bastion.core.errors import StoreError

T = TypeVar("T")


def concurrently(calls: Sequence[Callable[[], T]], *, connections: int) -> list[T | StoreError]:
    """Return what the calls return, or the `StoreError` that they raise, in the order of the calls.

    Args:
        connections: Maximum number of calls under way; with 1 no thread is started.
    """
    if connections == 1 or len(calls) <= 1:
        return [_answer(call) for call in calls]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(calls)):
        waiting.put(index)
    # None: a thread has ended, because nothing is left to do or because of an error that is not the store's.
    answered: queue.SimpleQueue[tuple[int, T | StoreError] | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            while True:
                index = waiting.get_nowait()
                answered.put((index, _answer(calls[index])))
        except queue.Empty:
            return
        finally:
            answered.put(None)

    threads = min(connections, len(calls))
    for _ in range(threads):
        threading.Thread(target=work, name="bucket-request", daemon=True).start()
    answers: dict[int, T | StoreError] = {}
    while threads:
        item = answered.get()
        if item is None:
            threads -= 1
        else:
            answers[item[0]] = item[1]
    if len(answers) < len(calls):
        raise RuntimeError("a request to the bucket raised an unexpected error; see above")
    return [answers[index] for index in range(len(calls))]


def _answer(call: Callable[[], T]) -> T | StoreError:
    try:
        return call()
    except StoreError as error:
        return error
