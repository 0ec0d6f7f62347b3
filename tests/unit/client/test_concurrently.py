"""Several requests at once: answers in order, errors in their places, and no waiting for ever."""

from __future__ import annotations

import threading

import pytest

from bastion.client.concurrently import concurrently
from bastion.core.errors import NotFound, StoreUnavailable


def call(answer: object):  # type: ignore[no-untyped-def]
    def answered() -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return answered


@pytest.mark.parametrize("connections", [1, 3, 100])
def test_answers_and_errors_of_the_store_stand_in_the_order_of_the_calls(connections: int) -> None:
    answers = [1, NotFound("gone"), 3, StoreUnavailable("down"), 5, 6, 7]
    assert concurrently([call(answer) for answer in answers], connections=connections) == answers
    assert concurrently([], connections=connections) == []


def test_no_more_requests_are_under_way_than_there_are_connections() -> None:
    under_way, most, lock = 0, 0, threading.Lock()
    met = threading.Barrier(4)

    def request() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        met.wait(timeout=20)
        with lock:
            under_way -= 1

    concurrently([request] * 12, connections=4)
    assert most == 4


def test_a_mistake_in_a_call_is_an_error_and_not_a_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RuntimeError, match="raised an unexpected error"):
        concurrently([call(1), call(KeyError("mistake")), call(3)], connections=2)


def test_no_thread_is_left_behind() -> None:
    concurrently([call(number) for number in range(50)], connections=8)
    threads = [thread for thread in threading.enumerate() if thread.name == "bucket-request"]
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
