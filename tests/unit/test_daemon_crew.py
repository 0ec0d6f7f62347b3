"""The daemon's threads share out a list of tasks."""

from __future__ import annotations

import threading

import pytest

from bastion.daemon.thread_pool import Crew


def test_results_come_in_the_order_of_the_tasks_whoever_is_done_first() -> None:
    crew = Crew(4)
    second_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert second_is_done.wait(20)
        elif number == 1:
            second_is_done.set()
        return number * number

    assert crew.each(work, range(100)) == [number * number for number in range(100)]
    crew.dismiss()


def test_no_task_is_under_way_any_more_when_one_has_failed() -> None:
    crew = Crew(3)
    begun = threading.Event()
    done = []

    def work(number: int) -> None:
        if number == 0:
            assert begun.wait(20)
            raise ValueError("the first")
        begun.set()
        done.append(number)

    with pytest.raises(ValueError, match="the first"):
        crew.each(work, range(20))
    assert sorted(done) == list(range(1, 20))
    crew.dismiss()


def test_no_tasks_are_no_work() -> None:
    crew = Crew(2)
    assert crew.each(str, []) == []
    crew.dismiss()
