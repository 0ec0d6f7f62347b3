"""The daemon's threads share out a list of tasks."""

from __future__ import annotations

import threading

import pytest

from bastion.daemon.thread_pool import ThreadPool


def test_results_come_in_the_order_of_the_tasks_whoever_is_done_first() -> None:
    threads = ThreadPool(4)
    second_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_is_done.wait(20)
        elif number == 1:
            second_is_done.set()
        return number * number

    assert threads.each(work, range(100)) == [number * number for number in range(100)]
    threads.dismiss()


def test_no_task_is_under_way_any_more_when_one_has_failed() -> None:
    threads = ThreadPool(3)
    begun = threading.Event()
    done = []

    def work(number: int) -> None:
        if number == 0:
            assert begun.wait(20)
            raise ValueError("the first")
        begun.set()
        done.append(number)

    with pytest.raises(ValueError, match="the first"):
        threads.each(work, range(20))
    assert sorted(done) == list(range(1, 20))
    threads.dismiss()


def test_no_tasks_are_no_work() -> None:
    threads = ThreadPool(2)
    assert threads.each(str, []) == []
    threads.dismiss()
