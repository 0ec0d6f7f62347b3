"""Waiting for capacity: since when, for how long altogether, and when another zone is asked or the job gives up.

Only time without capacity counts: what a job waits for its project's share is no part of it.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.instants import duration
from bastion.core.model.budgets import Budgets
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord, Waiting
from bastion.core.model.world import RunView


def seen(attempt: Attempt, view: RunView, now: float) -> Attempt:
    """The attempt with what its gang waits for; the same object if nothing of that is new."""
    node = view.gang
    if node is None or attempt.running_since is not None:
        return attempt
    if node.state is GangState.WAITING:
        word = node.waiting or "WAITING"
        if attempt.waiting is not None and attempt.waiting.state == word:
            return attempt
        since = now if attempt.waiting is None else attempt.waiting.since
        waiting = Waiting(state=word, zone=node.ref.zone, since=since)
        return attempt.model_copy(update={"waiting": waiting, "up_since": None})
    if attempt.waiting is not None and node.state in (GangState.CREATING, GangState.READY):
        return attempt.model_copy(update={"waiting": None, "up_since": now})
    return attempt


def told(before: Attempt, after: Attempt) -> str:
    """What the history says of such news; empty for a mere change of the API's word."""
    if before.waiting is None and after.waiting is not None:
        return f"attempt {after.number} waits for capacity{_where(after.waiting)}: {after.waiting.state}"
    if before.waiting is not None and after.waiting is None and after.up_since is not None:
        waited = duration(after.up_since - before.waiting.since)
        return f"attempt {after.number} got capacity{_where(before.waiting)} after {waited}"
    return ""


def _where(waiting: Waiting) -> str:
    return f" in {waiting.zone}" if waiting.zone else ""


def waited_seconds(record: JobRecord, attempt: Attempt | None, now: float) -> float:
    """For how long the job has had no capacity until now, this attempt included."""
    present = now - attempt.waiting.since if attempt is not None and attempt.waiting is not None else 0.0
    return record.waited_seconds + max(0.0, present)


def spent_seconds(attempt: Attempt, ending: Ending) -> float:
    """What an attempt adds, once it is over, to the time without capacity."""
    if attempt.waiting is not None:
        return max(0.0, ending.at - attempt.waiting.since)
    # One that was told only in the end that there is none has been waiting all the while.
    return max(0.0, ending.at - attempt.started_at) if ending.cause is Cause.CAPACITY else 0.0


def max_wait(record: JobRecord) -> int | None:
    """For how long the job's owner lets it wait for capacity; None: for ever."""
    runner = record.job.runner
    return runner.max_wait_seconds if runner is not None else None


def valid_until_seconds(record: JobRecord, attempt: Attempt) -> float | None:
    """How long a request of this attempt may wait: longer than the daemon lets it, which gives the better reason."""
    most = max_wait(record)
    if most is None:
        return None
    return max(0.0, most - waited_seconds(record, attempt, attempt.started_at)) + limits.VALID_UNTIL_SLACK_SECONDS


def given_up(record: JobRecord, attempt: Attempt, zones: int, budgets: Budgets, now: float) -> Ending | None:
    """Whether a gang has waited long enough, here or altogether.

    Args:
        zones: How many places its type may have.
    """
    waiting = attempt.waiting
    if waiting is None:
        return None
    most = max_wait(record)
    if most is not None and waited_seconds(record, attempt, now) >= most:
        text = f"it was {waiting.state}{_where(waiting)} for {duration(now - waiting.since)}"
    elif zones > 1 and now - waiting.since >= budgets.zone_wait_seconds:
        text = f"{waiting.state}{_where(waiting)} for {duration(now - waiting.since)}; another zone is asked"
    else:
        return None
    return Ending(cause=Cause.CAPACITY, message=text, at=now, grace_seconds=budgets.failure_grace_seconds)
