"""Pauses between attempts: doubled, bounded, apart from each other, and the same every time they are worked out."""

from __future__ import annotations

import pytest

from bastion.core.model.gangs import Place
from bastion.core.model.job_record import Attempt, Cause, Ending
from bastion.core.reconcile.retry_policy import EndedAttempt, backoff_seconds


@pytest.mark.parametrize("failures", [1, 2, 3, 7, 1000, 10**6])
def test_a_pause_is_between_three_quarters_and_the_whole_of_what_doubling_gives(failures: int) -> None:
    whole = min(10.0 * 2.0 ** min(failures - 1, 60), 300.0)
    pauses = [backoff_seconds(10.0, 300.0, failures, f"uid-{number}") for number in range(200)]
    assert 0.75 * whole <= min(pauses) < 0.78 * whole
    assert 0.97 * whole < max(pauses) <= whole


def test_a_pause_is_the_same_for_the_same_run() -> None:
    assert backoff_seconds(10.0, 300.0, 2, "uid-1") == backoff_seconds(10.0, 300.0, 2, "uid-1")


@pytest.mark.parametrize(
    ("zone", "turn", "following"),
    [("a", 0, 1), ("b", 0, 2), ("c", 0, 3), ("b", 4, 5), ("c", 4, 6), ("a", 4, 7), ("gone", 4, 5)],
)
def test_the_turn_goes_on_after_the_zone_that_was_asked(zone: str, turn: int, following: int) -> None:
    attempt = Attempt(number=1, token="t", started_at=0.0, place=Place(zone=zone))
    ending = Ending(cause=Cause.CAPACITY, message="", at=1.0, grace_seconds=0.0)
    assert EndedAttempt(attempt=attempt, ending=ending, zones=("a", "b", "c")).next_zone_turn(turn) == following
