"""Turns of writers: one after the other, and nobody is held up for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from bastion.emulators.gcs.one_at_a_time import Turns


def test_threads_work_one_after_the_other() -> None:
    turns = Turns(taken=True)
    at_work = most = 0

    def work(_: int) -> None:
        nonlocal at_work, most
        with turns.one():
            at_work += 1
            most = max(most, at_work)
            sum(range(1000))
            at_work -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(400)))
    assert most == 1


def test_the_next_one_waits_for_the_end_of_a_turn_however_it_ends() -> None:
    turns = Turns(taken=True, patience_seconds=60)
    done = threading.Event()

    def next_one() -> None:
        with turns.one():
            done.set()

    thread = threading.Thread(target=next_one)
    try:
        with turns.one():
            thread.start()
            assert not done.wait(0.02)
            raise RuntimeError
    except RuntimeError:
        assert done.wait(10)
    thread.join()


def test_whoever_has_waited_long_goes_on_without_a_turn_and_does_not_end_that_of_another() -> None:
    turns = Turns(taken=True, patience_seconds=0.001)
    with turns.one():
        for _ in range(2):
            with turns.one():
                pass
            assert turns.held
    assert not turns.held


def test_where_no_turns_are_taken_nobody_waits() -> None:
    turns = Turns(taken=False, patience_seconds=60)
    with turns.one(), turns.one():
        assert not turns.held
