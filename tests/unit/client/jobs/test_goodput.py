"""Goodput of a job from its result, as the daemon writes it."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.client.jobs.goodput import goodput
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import Result
from bastion.core.goodput import Goodput


def found(*attempts: dict[str, Any], queued_at: float = 0.0) -> Goodput | None:
    result = Result.model_validate({"name": "job", "queued_at": queued_at, "attempts": attempts})
    return goodput(JobInfo(name="job", uid="u", stage=Stage.COMPLETED, result=result), 10_000.0)


def attempt(started_at: float, ended_at: float, cause: str, **fields: Any) -> dict[str, Any]:
    return {"number": 1, "started_at": started_at, "ended_at": ended_at, "cause": cause, "message": "", **fields}


def test_an_attempt_that_got_no_machines_is_a_wait() -> None:
    assert found(attempt(10, 50, "capacity")) == Goodput(waiting=50)
    assert found(attempt(10, 50, "cancelled", held_at=50)) == Goodput(waiting=50), "it waited when it was cancelled"


def test_machines_that_came_late_are_held_from_then_on() -> None:
    ran = attempt(10, 100, "succeeded", held_at=40, running_since=50, stopped_at=90)
    assert found(ran) == Goodput(waiting=40, restarting=20, productive=40)


def test_each_failed_try_loses_what_it_had_not_saved() -> None:
    tries = [
        {"number": 1, "exit_code": 1, "started_at": 20, "ended_at": 60, "checkpointed_at": 50, "last_step": 30},
        {"number": 2, "exit_code": 1, "started_at": 65, "ended_at": 80, "first_step": 25, "last_step": 28},
    ]
    ran = attempt(10, 100, "succeeded", running_since=20, try_since=85, stopped_at=95, tries=tries, first_step=25)
    assert found(ran) == Goodput(waiting=10, restarting=25, productive=40, lost=25, lost_steps=10)


def test_an_attempt_of_an_older_version_counts_from_its_start_to_its_end() -> None:
    assert found(attempt(10, 100, "evicted", running_since=30)) == Goodput(waiting=10, restarting=20, lost=70)


@pytest.mark.parametrize("attempts", [(), ({"number": 1, "cause": "succeeded"},)])
def test_a_result_without_attempts_or_their_times_tells_nothing(attempts: tuple[dict[str, Any], ...]) -> None:
    assert found(*attempts) is None
