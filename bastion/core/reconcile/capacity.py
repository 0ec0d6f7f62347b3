"""Waiting for capacity: when a gang moves to another zone or its job gives up. The wait for a share does not count."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.instants import duration
from bastion.core.model.budgets import Budgets
from bastion.core.model.clusters import where
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord, Waiting
from bastion.core.model.world import RunView


def with_wait(attempt: Attempt, view: RunView, now: float) -> Attempt:
    """Return the attempt with what its gang waits for; the same object if nothing changed."""
    gang = view.gang
    if gang is None or attempt.running_since is not None:
        return attempt
    if gang.state is GangState.WAITING:
        before = attempt.waiting
        partial_since = None
        if gang.partial:
            partial_since = now if before is None or before.partial_since is None else before.partial_since
        waiting = Waiting(
            state=gang.waiting or "WAITING",
            zone=gang.ref.zone,
            since=now if before is None else before.since,
            partial_since=partial_since,
        )
        if waiting == before:
            return attempt
        return attempt.model_copy(update={"waiting": waiting, "up_since": None})
    if attempt.waiting is not None and gang.state in (GangState.CREATING, GangState.READY):
        return attempt.model_copy(update={"waiting": None, "up_since": now})
    return attempt


def history_text(before: Attempt, after: Attempt) -> str:
    """Return the history line for a change of the wait; empty if there is none."""
    if before.waiting is None and after.waiting is not None:
        return f"attempt {after.number} is waiting for capacity{where(after.waiting.zone)}: {after.waiting.state}"
    if before.waiting is not None and after.waiting is None and after.up_since is not None:
        waited = duration(after.up_since - before.waiting.since)
        return f"attempt {after.number} got capacity{where(before.waiting.zone)} after {waited}"
    return ""


def waited_seconds(record: JobRecord, attempt: Attempt | None, now: float) -> float:
    """Seconds that the job has been without capacity, this attempt included."""
    present = now - attempt.waiting.since if attempt is not None and attempt.waiting is not None else 0.0
    return record.waited_seconds + max(0.0, present)


def spent_seconds(attempt: Attempt, ending: Ending) -> float:
    """Return the seconds that an ended attempt waited for capacity."""
    if attempt.waiting is not None:
        return max(0.0, ending.at - attempt.waiting.since)
    # The API may report the shortage only at the end; then the whole attempt was a wait.
    return max(0.0, ending.at - attempt.started_at) if ending.cause is Cause.CAPACITY else 0.0


def max_wait(record: JobRecord) -> int | None:
    """Seconds that the owner lets the job wait for capacity; None: no limit."""
    runner = record.job.runner
    return runner.max_wait_seconds if runner is not None else None


def valid_until_seconds(record: JobRecord, attempt: Attempt) -> float | None:
    """Return how long the API may keep this request. The daemon's own limit is shorter and gives the better reason."""
    most = max_wait(record)
    if most is None:
        return None
    return max(0.0, most - waited_seconds(record, attempt, attempt.started_at)) + limits.VALID_UNTIL_SLACK_SECONDS


def given_up(record: JobRecord, attempt: Attempt, zones: int, budgets: Budgets, now: float) -> Ending | None:
    """Return the ending of a gang that has waited too long, here or in total. `zones` counts places for its type."""
    waiting = attempt.waiting
    if waiting is None:
        return None
    most = max_wait(record)
    if most is not None and waited_seconds(record, attempt, now) >= most:
        text = f"{waiting.state}{where(waiting.zone)} for {duration(now - waiting.since)}"
    elif zones > 1 and now - waiting.since >= budgets.zone_wait_seconds:
        text = f"{waiting.state}{where(waiting.zone)} for {duration(now - waiting.since)}; trying another place"
    elif waiting.partial_since is not None and now - waiting.partial_since >= budgets.zone_wait_seconds:
        held = duration(now - waiting.partial_since)
        text = f"{waiting.state}{where(waiting.zone)}: only some of its hosts had machines for {held}; giving them back"
    else:
        return None
    return Ending(cause=Cause.CAPACITY, message=text, at=now, grace_seconds=budgets.failure_grace_seconds)
