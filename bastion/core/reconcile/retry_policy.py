"""Retry policy: what follows the end of an attempt. Each class of failure has its own budget.

* The user's: the job fails with the command's exit code. (Tries come before: `bastion.core.reconcile.tries`.) If the
  gang ended with the command, as when it ran out of memory, the next try is another attempt.
* Stuck: restarted in place up to `Budgets.stuck_restarts` times in a row (`tries`, too); then the job fails.
* Infrastructure: another attempt after a doubling pause, up to `Budgets.infrastructure_attempts` times in a row.
* Capacity: the next zone at once; after the last zone a doubling pause, until `max_wait_seconds` if set.
* Overtime: the job fails with exit code 124, also if another attempt would have no time left (`--max_run`).
* Permanent: the job is refused at once, with the API's message and what to do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from bastion.core import limits
from bastion.core.errors import EXIT_INFRASTRUCTURE, EXIT_REFUSED
from bastion.core.instants import duration
from bastion.core.model.budgets import Budgets
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord, Outcome
from bastion.core.model.lifecycle import Status
from bastion.core.reconcile import capacity, run_time, tries


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An ended attempt. `zones` are those for its gang, in the order in which they are tried."""

    attempt: Attempt
    ending: Ending
    zones: tuple[str, ...] = ()

    def next_zone_turn(self, zone_turn: int) -> int:
        """Return the `zone_turn` after the zone it was in; a zone that did not answer was skipped."""
        zone = self.attempt.place.zone if self.attempt.place is not None else ""
        if zone not in self.zones:
            return zone_turn + 1
        return zone_turn + (self.zones.index(zone) - zone_turn) % len(self.zones) + 1


def backoff_seconds(base: float, most: float, failures: int, salt: str) -> float:
    """Return the seconds to wait after consecutive failures: doubling up to `most`, with jitter by `salt`."""
    # After sixty doublings every pause is at its maximum, and floats lose precision.
    longest = min(base * 2.0 ** min(failures - 1, 60), most)
    draw = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:4], "big") / 2**32
    return longest * (1 - draw / 4)


def after_attempt(record: JobRecord, over: EndedAttempt, now: float, budgets: Budgets) -> tuple[str, dict[str, Any]]:
    """Return the history line and the changed fields of the record of a job whose attempt has ended.

    Its `held_seconds` have that attempt's.
    """
    text, changes = _after(record, over, now, budgets)
    used_up = run_time.used_up(record) if changes["status"] is Status.PENDING else ""
    return (text, changes) if not used_up else overtime(f"{used_up}; the last attempt: {over.ending.message}")


def overtime(message: str) -> tuple[str, dict[str, Any]]:
    """Return the end of a job that may not have another attempt."""
    outcome = Outcome(
        outcome="failed", exit_code=limits.OVERTIME_EXIT_CODE, message=message[: limits.MESSAGE_MAX_CHARS]
    )
    return f"failed: {message}", {"status": Status.CLEANING, "outcome": outcome}


def _after(record: JobRecord, over: EndedAttempt, now: float, budgets: Budgets) -> tuple[str, dict[str, Any]]:
    ending = over.ending
    waited = record.waited_seconds + capacity.spent_seconds(over.attempt, ending)
    match ending.cause:
        case Cause.SUCCEEDED:
            return _outcome("succeeded", 0, ending)
        case Cause.FAILED if ending.gang_failed and over.attempt.try_number < _last_try(record, over.attempt):
            most = _last_try(record, over.attempt)
            text = f"try {over.attempt.try_number} of {most} failed: {ending.message}; queued again"
            changes = {"failed_tries": over.attempt.try_number, "waited_seconds": waited}
            return text, {"status": Status.PENDING, **changes}
        case Cause.FAILED | Cause.OVERTIME | Cause.STUCK:
            return _outcome("failed", ending.exit_code or 1, ending)
        case Cause.REFUSED:
            return _outcome("refused", EXIT_REFUSED, ending)
        case Cause.INFRASTRUCTURE:
            text, changes = _lost(record, over, now, budgets)
            return text, {**changes, "waited_seconds": waited}
        case Cause.CAPACITY:
            return _no_capacity(record, over, waited, now)
        case Cause.UPDATED:
            text = f"queued again: {ending.cause.value}: {ending.message}"
            return text, {"status": Status.PENDING, "waited_seconds": waited, **tries.NONE_BEFORE}
        case Cause.SUPERSEDED:  # it held and awaited nothing
            return f"queued again: {ending.cause.value}: {ending.message}", {"status": Status.PENDING}
        case Cause.REQUEUED:  # the request has its own line
            return "queued again", {"status": Status.PENDING, "waited_seconds": waited}
        case Cause.EVICTED | Cause.CANCELLED:
            text = f"queued again: {ending.cause.value}: {ending.message}"
            return text, {"status": Status.PENDING, "waited_seconds": waited}


def _last_try(record: JobRecord, attempt: Attempt) -> int:
    return (record.job.runner.max_tries if record.job.runner is not None else 1) + attempt.stuck_tries


def _lost(record: JobRecord, over: EndedAttempt, now: float, budgets: Budgets) -> tuple[str, dict[str, Any]]:
    attempt, ending = over.attempt, over.ending
    ran = 0.0 if attempt.running_since is None else ending.at - attempt.running_since
    failures = 1 if ran >= limits.INFRASTRUCTURE_RESET_SECONDS else record.infrastructure_failures + 1
    if failures >= budgets.infrastructure_attempts:
        text, changes = _outcome("failed", EXIT_INFRASTRUCTURE, ending)
        return text, {**changes, "infrastructure_failures": failures}
    base, most = limits.INFRASTRUCTURE_BACKOFF_SECONDS, limits.INFRASTRUCTURE_BACKOFF_MAX_SECONDS
    wait = backoff_seconds(base, most, failures, f"{record.uid}-{attempt.number}")
    changes = {"status": Status.PENDING, "infrastructure_failures": failures, "not_before": now + wait}
    return f"queued again in {wait:.0f} s: {ending.message}", changes


def _no_capacity(record: JobRecord, over: EndedAttempt, waited: float, now: float) -> tuple[str, dict[str, Any]]:
    ending = over.ending
    failures = record.capacity_failures + 1
    changes: dict[str, Any] = {"capacity_failures": failures, "zone_turn": over.next_zone_turn(record.zone_turn)}
    most = capacity.max_wait(record)
    if most is not None and waited >= most:
        message = f"no capacity for {duration(most)}, the limit set by --max_wait: {ending.message}"
        ending = ending.model_copy(update={"message": message[: limits.MESSAGE_MAX_CHARS]})
        text, outcome = _outcome("failed", EXIT_INFRASTRUCTURE, ending)
        return text, {**changes, **outcome, "waited_seconds": waited}
    changes |= {"status": Status.PENDING, "stockout": True}
    rounds, left = divmod(failures, max(1, len(over.zones)))
    if left:
        return f"requesting capacity in another place: {ending.message}", {**changes, "waited_seconds": waited}
    base, longest = limits.CAPACITY_BACKOFF_SECONDS, limits.CAPACITY_BACKOFF_MAX_SECONDS
    wait = backoff_seconds(base, longest, rounds, f"{record.uid}-{over.attempt.number}")
    if most is not None:
        wait = min(wait, most - waited)  # one last request
    changes |= {"not_before": now + wait, "waited_seconds": waited + wait}
    return f"waiting for capacity; requesting again in {wait:.0f} s: {ending.message}", changes


def _outcome(outcome: str, exit_code: int, ending: Ending) -> tuple[str, dict[str, Any]]:
    result = Outcome(outcome=outcome, exit_code=exit_code, message=ending.message, failed_worker=ending.failed_worker)
    return f"{outcome}: {ending.message}", {"status": Status.CLEANING, "outcome": result}
