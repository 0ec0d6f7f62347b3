"""The wait in a queue of Kueue: it is no wait for capacity, and ends nothing."""

from __future__ import annotations

from bastion.core.model.budgets import Budgets
from bastion.core.model.gangs import Place
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord, Waiting
from bastion.core.reconcile import capacity
from tests.support.job_specs import new_spec

HOUR = 3600.0
PLACE = Place(zone="k8s:training", queue="bastion-a")


def record(waited: float = 0.0) -> JobRecord:
    spec = new_spec(instance_type="tpu-v4-16", max_wait_seconds=int(HOUR))
    return JobRecord(name="job", uid="abcdefghij", generation=1, job=spec, queued_at=0.0, waited_seconds=waited)


def attempt(queue: str, *, up_since: float | None = None) -> Attempt:
    """An attempt that has waited since 0 in that queue; with `up_since` it does not wait any more."""
    waiting = Waiting(state="Pending", zone=PLACE.zone, since=0.0, queue=queue) if up_since is None else None
    return Attempt(number=1, token="t", started_at=0.0, place=PLACE, waiting=waiting, up_since=up_since)


def test_only_the_wait_after_admission_counts() -> None:
    assert capacity.waited_seconds(record(5.0), attempt("bastion-a"), 9 * HOUR) == 5.0
    assert capacity.waited_seconds(record(5.0), attempt(""), 9 * HOUR) == 5.0 + 9 * HOUR


def test_a_job_that_has_used_up_its_wait_may_still_wait_for_kueue() -> None:
    assert capacity.given_up(record(HOUR), attempt("bastion-a"), 2, Budgets(), 9 * HOUR) is None
    ending = capacity.given_up(record(HOUR), attempt(""), 2, Budgets(), 1.0)
    assert ending is not None
    assert ending.cause is Cause.CAPACITY


def test_the_request_has_no_limit_of_time() -> None:
    assert capacity.valid_until_seconds(record(), attempt("bastion-a")) is None


def test_an_attempt_that_ended_spent_no_more_than_the_time_since_its_admission() -> None:
    ending = Ending(cause=Cause.CAPACITY, message="none", at=9 * HOUR, grace_seconds=0.0)
    assert capacity.spent_seconds(attempt("bastion-a"), ending) == 0.0
    assert capacity.spent_seconds(attempt(""), ending) == 9 * HOUR
    assert capacity.spent_seconds(attempt("", up_since=8 * HOUR), ending) == HOUR
