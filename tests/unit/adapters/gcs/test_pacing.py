"""Writes of one object are kept apart; other objects' are not held up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from bastion.adapters.gcs.pacing import WritePacer
from bastion.testing.manual_clock import ManualClock

NEVER = float("inf")


def test_writes_of_one_key_begin_an_interval_apart_and_the_first_at_once(clock: ManualClock) -> None:
    pacer = WritePacer(clock, 1.0)
    began = []
    for _ in range(4):
        assert pacer.wait("a", until=NEVER)
        began.append(clock.monotonic())
    assert [instant - began[0] for instant in began] == [0.0, 1.0, 2.0, 3.0]


def test_another_key_does_not_wait_and_neither_does_one_that_was_still(clock: ManualClock) -> None:
    pacer = WritePacer(clock, 1.0)
    begun = clock.monotonic()
    pacer.wait("a", until=NEVER)
    pacer.wait("b", until=NEVER)
    assert clock.monotonic() == begun
    clock.advance(1.5)
    pacer.wait("a", until=NEVER)
    assert clock.monotonic() == begun + 1.5


def test_a_turn_that_would_come_too_late_is_not_taken(clock: ManualClock) -> None:
    pacer = WritePacer(clock, 10.0)
    begun = clock.monotonic()
    assert pacer.wait("a", until=NEVER)
    assert not pacer.wait("a", until=begun + 9)
    assert clock.monotonic() == begun
    assert pacer.wait("a", until=begun + 11)
    assert clock.monotonic() == begun + 10


def test_without_an_interval_nothing_waits_or_is_remembered(clock: ManualClock) -> None:
    pacer = WritePacer(clock, 0.0)
    begun = clock.monotonic()
    assert all(pacer.wait("a", until=begun) for _ in range(5))
    assert (clock.monotonic(), len(pacer)) == (begun, 0)


def test_what_is_remembered_does_not_grow_with_the_number_of_keys(clock: ManualClock) -> None:
    pacer = WritePacer(clock, 1.0)
    most = 0
    for number in range(20_000):
        pacer.wait(f"key-{number}", until=NEVER)
        clock.advance(0.01)
        most = max(most, len(pacer))
    assert most <= 1024


def test_threads_that_write_one_key_get_turns_of_their_own_and_do_not_hold_each_other_while_they_sleep() -> None:
    class Sleepless(ManualClock):
        """Notes the sleeps, and shows how many are under way at once."""

        def __init__(self) -> None:
            super().__init__()
            self.slept: list[float] = []
            self.together = threading.Barrier(7)

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.together.wait(10)

    clock = Sleepless()
    pacer = WritePacer(clock, 1.0)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: pacer.wait("a", until=NEVER), range(8)))
    assert sorted(clock.slept) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
