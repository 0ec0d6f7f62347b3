"""What a restart costs is what attempts of the type took to start of late."""

from __future__ import annotations

from bastion.core.model.job_record import Attempt, JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.reconcile.restart_costs import RestartCosts

SPEC = {
    "version": 1,
    "name": "job",
    "command": "true",
    "metadata": {"user_id": "u", "project_id": "p", "creation_time": "2026-01-02 03:04:05.000006", "resources": {}},
}


def record(uid: str, took: float | None, *, kind: str = "v4", number: int = 1) -> JobRecord:
    attempt = Attempt(
        number=number,
        token="t",
        started_at=1000.0,
        charged={kind: 8},
        running_since=None if took is None else 1000.0 + took,
    )
    return JobRecord(
        name="job", uid=uid, generation=1, job=SPEC, queued_at=1.0, status=Status.ACTIVE, attempt=attempt,
        next_attempt=number + 1,
    )  # fmt: skip


def test_it_is_the_median_of_the_attempts_that_were_seen_to_start() -> None:
    costs = RestartCosts()
    assert costs.note([record("a", None)]) == {}
    assert costs.note([record("a", 30.0), record("b", 50.0), record("c", 400.0), record("d", 7.0, kind="v6e")]) == {
        "v4": 50.0,
        "v6e": 7.0,
    }


def test_an_attempt_counts_once_and_a_later_one_again() -> None:
    costs = RestartCosts()
    for _ in range(5):
        costs.note([record("a", 30.0)])
    assert costs.note([record("b", 50.0)]) == {"v4": 40.0}
    assert costs.note([record("a", 90.0, number=2)]) == {"v4": 50.0}


def test_only_the_last_attempts_count() -> None:
    costs = RestartCosts()
    costs.note([record(f"old-{number}", 500.0) for number in range(30)])
    assert costs.note([record(f"new-{number}", 20.0) for number in range(8)]) == {"v4": 20.0}


def test_a_clock_that_went_back_makes_no_negative_cost() -> None:
    assert RestartCosts().note([record("a", -50.0)]) == {"v4": 0.0}
