"""When another try is made, after which pause, and when no more."""

from __future__ import annotations

import logging
import random

import pytest

from bastion.adapters.bucket_requests.answers import Transient
from bastion.adapters.bucket_requests.retry import Patience, Retries
from bastion.testing.manual_clock import ManualClock

PATIENT = Patience(spare_retries=1e9)


class Failing:
    """Fails `times` times, then answers; notes when it was asked."""

    def __init__(self, clock: ManualClock, times: float, *, takes: float = 0.0, error: Exception | None = None) -> None:
        self._clock = clock
        self._times = times
        self._takes = takes
        self._error = error or Transient("no answer", doubtful=True)
        self.asked: list[float] = []

    def __call__(self) -> str:
        self.asked.append(self._clock.monotonic())
        self._clock.advance(self._takes)
        if len(self.asked) <= self._times:
            raise self._error
        return "answer"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def retries(clock: ManualClock, patience: Patience = PATIENT) -> Retries:
    return Retries(clock, random.Random(3), patience)


def test_a_passing_failure_is_tried_again_until_it_passes(clock: ManualClock) -> None:
    trying = retries(clock)
    ask = Failing(clock, 3)
    assert trying.call(ask, until=trying.limit().ends) == "answer"
    assert len(ask.asked) == 4


def test_what_does_not_pass_is_tried_once(clock: ManualClock) -> None:
    ask = Failing(clock, 99, error=PermissionError("no"))
    with pytest.raises(PermissionError):
        retries(clock).call(ask, until=float("inf"))
    assert len(ask.asked) == 1


def test_pauses_are_jittered_and_double_up_to_the_longest(clock: ManualClock) -> None:
    pauses: list[list[float]] = []
    for seed in range(200):
        ask = Failing(clock, 8)
        Retries(clock, random.Random(seed), PATIENT).call(ask, until=float("inf"))
        pauses.append([after - before for before, after in zip(ask.asked, ask.asked[1:], strict=False)])
    longest = [max(of_all) for of_all in zip(*pauses, strict=True)]
    for found, bound in zip(longest, [1, 2, 4, 8, 16, 16, 16, 16], strict=True):
        assert 0.9 * bound < found <= bound
    assert len({tuple(of_one) for of_one in pauses}) == 200


@pytest.mark.parametrize("takes", [0.0, 7.0, 100.0])
def test_no_try_begins_after_the_deadline(clock: ManualClock, takes: float) -> None:
    trying = retries(clock)
    limit = trying.limit()
    ask = Failing(clock, float("inf"), takes=takes)
    with pytest.raises(Transient):
        trying.call(ask, until=limit.ends)
    assert max(ask.asked) < limit.ends
    assert clock.monotonic() < limit.ends + takes


def test_the_last_failure_is_told_with_the_number_of_tries(clock: ManualClock) -> None:
    trying = retries(clock)
    ask = Failing(clock, float("inf"))
    with pytest.raises(Transient, match=r"no answer \(after \d+ tries\)") as told:
        trying.call(ask, until=trying.limit().ends)
    assert told.value.doubtful
    assert f"{len(ask.asked)} tries" in str(told.value)


def test_over_an_outage_retries_are_a_fifth_of_the_requests(clock: ManualClock) -> None:
    patience = Patience(spare_retries=50)
    trying = retries(clock, patience)
    asked = 0
    for _ in range(1000):
        ask = Failing(clock, float("inf"))
        with pytest.raises(Transient):
            trying.call(ask, until=trying.limit().ends)
        asked += len(ask.asked)
    assert 1000 + 0.2 * 1000 - 1 <= asked <= 1000 + 0.2 * 1000 + 50


def test_after_an_outage_the_budget_fills_again(clock: ManualClock) -> None:
    trying = retries(clock, Patience(spare_retries=2))
    for _ in range(5):
        with pytest.raises(Transient):
            trying.call(Failing(clock, float("inf")), until=trying.limit().ends)
    for _ in range(10):
        trying.call(Failing(clock, 0), until=trying.limit().ends)
    assert trying.call(Failing(clock, 2), until=float("inf")) == "answer"


def test_large_objects_get_more_time(clock: ManualClock) -> None:
    trying = retries(clock)
    small, large = trying.limit(), trying.limit(sent_bytes=256 * 1024 * 1024)
    assert large.ends - small.ends == 1024
    assert large.timeouts() == (10 + 1024, 30)


def test_a_write_keeps_time_for_finding_out_what_came_of_it(clock: ManualClock) -> None:
    limit = retries(clock).limit(asks_after=True)
    assert limit.tries_end == clock.monotonic() + 50
    assert limit.ends == clock.monotonic() + 60


def test_a_request_may_not_take_longer_than_what_is_left(clock: ManualClock) -> None:
    limit = retries(clock).limit()
    assert limit.timeouts() == (10, 30)
    clock.advance(55)
    assert limit.timeouts() == (5, 5)


def test_an_answer_that_drips_is_given_up(clock: ManualClock) -> None:
    limit = retries(clock).limit()
    assert not limit.exceeded(0)
    clock.advance(61)
    assert limit.exceeded(100 * 1024)
    assert not limit.exceeded(10 * 1024 * 1024)


@pytest.mark.parametrize("takes", [0.0, 2.0, 30.0])
def test_what_takes_long_is_told_once(clock: ManualClock, caplog: pytest.LogCaptureFixture, takes: float) -> None:
    caplog.set_level(logging.INFO)
    trying = retries(clock)
    with pytest.raises(Transient):
        trying.call(Failing(clock, float("inf"), takes=takes), until=trying.limit().ends)
    (message,) = caplog.messages
    assert message.startswith("the bucket has not answered so far (no answer); trying for ")


def test_a_hiccup_is_not_told(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert retries(clock).call(Failing(clock, 2), until=float("inf")) == "answer"
    assert caplog.messages == []
