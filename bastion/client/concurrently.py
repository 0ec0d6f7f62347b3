"""Several requests at once, their answers in order.

Layer: client. A request to a bucket in the cloud takes 50 to 100 ms however little it asks, so one after the other is
what makes a long log slow.

Invariants:

* Each call is made exactly once, and its answer (or its error of the store) stands at its place.
* Ctrl-C ends the waiting at once: nobody waits for requests that are still under way, and their threads are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from bastion.core.errors import StoreError

T = TypeVar("T")


def concurrently(calls: Sequence[Callable[[], T]], *, connections: int) -> list[T | StoreError]:
    """What the calls return, or the `StoreError` they raise, in the order of the calls.

    Args:
        connections: How many calls at most are under way at the same time; with 1 no thread is started.
    """
    if connections == 1 or len(calls) <= 1:
        return [_answer(call) for call in calls]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(calls)):
        waiting.put(index)
    # None: a thread has ended, whether there was nothing left to do or something else than the store failed in it.
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
        raise RuntimeError("a request to the bucket ended in an error that is no answer of a store; it stands above")
    return [answers[index] for index in range(len(calls))]


def _answer(call: Callable[[], T]) -> T | StoreError:
    try:
        return call()
    except StoreError as error:
        return error
