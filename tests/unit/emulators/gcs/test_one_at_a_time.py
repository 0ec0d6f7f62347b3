"""Turns of writers: one after the other, and nobody is held up for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from bastion.emulators.gcs.one_at_a_time import OneAtATime


def test_threads_work_one_after_the_other() -> None:
    writers = OneAtATime(taken=True)
    at_work = most = 0

    def work(_: int) -> None:
        nonlocal at_work, most
        with writers.one():
            at_work += 1
            most = max(most, at_work)
            sum(range(1000))
            at_work -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(400)))
    assert most == 1


def test_the_next_one_waits_for_the_end_of_a_turn_however_it_ends() -> None:
    writers = OneAtATime(taken=True, patience_seconds=60)
    done = threading.Event()

    def next_one() -> None:
        with writers.one():
            done.set()

    thread = threading.Thread(target=next_one)
    try:
        with writers.one():
            thread.start()
            assert not done.wait(0.02)
            raise RuntimeError
    except RuntimeError:
        assert done.wait(10)
    thread.join()


def test_whoever_has_waited_long_goes_on_without_a_turn_and_does_not_end_that_of_another() -> None:
    writers = OneAtATime(taken=True, patience_seconds=0.001)
    with writers.one():
        for _ in range(2):
            with writers.one():
                pass
            assert writers.held
    assert not writers.held


def test_where_no_turns_are_taken_nobody_waits() -> None:
    writers = OneAtATime(taken=False, patience_seconds=60)
    with writers.one(), writers.one():
        assert not writers.held
