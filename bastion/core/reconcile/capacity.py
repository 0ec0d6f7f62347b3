"""Waiting for capacity: when a gang moves to another zone or its job gives up.

The wait for a share does not count, nor does the wait in a queue of Kueue. Only the job's own limit ends the wait of a
gang in such a queue, and it counts from the gang's admission.
"""

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
        queue = "" if gang.kueue is not None and gang.kueue.admitted else _queue(attempt)
        if before is not None and before.queue != queue:
            before = None
        partial_since = None
        if gang.partial:
            partial_since = now if before is None or before.partial_since is None else before.partial_since
        waiting = Waiting(
            state=gang.waiting or "WAITING",
            zone=gang.ref.zone,
            since=now if before is None else before.since,
            queue=queue,
            partial_since=partial_since,
        )
        if waiting == before:
            return attempt
        return attempt.model_copy(update={"waiting": waiting, "up_since": None})
    # Of a gang in a queue the admission counts even if nobody saw it wait: its hosts have their time from then on.
    came = attempt.waiting is not None or (bool(_queue(attempt)) and attempt.up_since is None)
    if came and gang.state in (GangState.CREATING, GangState.READY):
        return attempt.model_copy(update={"waiting": None, "up_since": now})
    return attempt


def _queue(attempt: Attempt) -> str:
    return attempt.place.queue if attempt.place is not None else ""


def awaits_admission(attempt: Attempt) -> bool:
    """Whether Kueue may not have admitted its gang yet; nothing of ours may end it for taking long."""
    if attempt.waiting is not None:
        return bool(attempt.waiting.queue)
    return bool(_queue(attempt)) and attempt.up_since is None and attempt.running_since is None


def history_text(before: Attempt, after: Attempt) -> str:
    """Return the history line for a change of the wait; empty if there is none."""
    was, now = before.waiting, after.waiting
    if now is not None and now.queue and (was is None or not was.queue):
        return f"attempt {after.number} is waiting in queue {now.queue}{where(now.zone)}: {now.state}"
    if was is not None and was.queue and (now is None or not now.queue):
        admitted_at = after.up_since if now is None else now.since
        waited = duration((was.since if admitted_at is None else admitted_at) - was.since)
        then = f"; waiting for capacity: {now.state}" if now is not None else ""
        return f"attempt {after.number} was admitted in queue {was.queue}{where(was.zone)} after {waited}{then}"
    if before.waiting is None and after.waiting is not None:
        return f"attempt {after.number} is waiting for capacity{where(after.waiting.zone)}: {after.waiting.state}"
    if before.waiting is not None and after.waiting is None and after.up_since is not None:
        waited = duration(after.up_since - before.waiting.since)
        return f"attempt {after.number} got capacity{where(before.waiting.zone)} after {waited}"
    return ""


def waited_seconds(record: JobRecord, attempt: Attempt | None, now: float) -> float:
    """Seconds that the job has been without capacity, this attempt included."""
    waiting = attempt.waiting if attempt is not None else None
    present = now - waiting.since if waiting is not None and not waiting.queue else 0.0
    return record.waited_seconds + max(0.0, present)


def spent_seconds(attempt: Attempt, ending: Ending) -> float:
    """Return the seconds that an ended attempt waited for capacity."""
    if awaits_admission(attempt):
        return 0.0
    if attempt.waiting is not None:
        return max(0.0, ending.at - attempt.waiting.since)
    # The API may report the shortage only at the end; then the whole attempt was a wait.
    since = attempt.up_since if _queue(attempt) and attempt.up_since is not None else attempt.started_at
    return max(0.0, ending.at - since) if ending.cause is Cause.CAPACITY else 0.0


def held_at(attempt: Attempt, ending: Ending, ended_at: float) -> float | None:
    """Return when the machines of an attempt came that waited for them, or its end if they never came.

    None if it did not wait, and for want of capacity, of which there may be thousands of attempts: the cause tells.
    """
    if ending.cause is Cause.CAPACITY:
        return None
    return ended_at if attempt.waiting is not None else attempt.up_since


def max_wait(record: JobRecord) -> int | None:
    """Seconds that the owner lets the job wait for capacity; None: no limit."""
    runner = record.job.runner
    return runner.max_wait_seconds if runner is not None else None


def valid_until_seconds(record: JobRecord, attempt: Attempt) -> float | None:
    """Return how long the API may keep this request. The daemon's own limit is shorter and gives the better reason."""
    most = max_wait(record)
    if most is None or _queue(attempt):
        return None
    return max(0.0, most - waited_seconds(record, attempt, attempt.started_at)) + limits.VALID_UNTIL_SLACK_SECONDS


def given_up(record: JobRecord, attempt: Attempt, zones: int, budgets: Budgets, now: float) -> Ending | None:
    """Return the ending of a gang that has waited too long, here or in total. `zones` counts places for its type."""
    waiting = attempt.waiting
    if waiting is None or waiting.queue:
        return None
    most = max_wait(record)
    if most is not None and waited_seconds(record, attempt, now) >= most:
        text = f"{waiting.state}{where(waiting.zone)} for {duration(now - waiting.since)}"
    elif _queue(attempt):
        return None  # Kueue gives up on gangs whose pods do not come up, if it is told to (`waitForPodsReady`)
    elif zones > 1 and now - waiting.since >= budgets.zone_wait_seconds:
        text = f"{waiting.state}{where(waiting.zone)} for {duration(now - waiting.since)}; trying another place"
    elif waiting.partial_since is not None and now - waiting.partial_since >= budgets.zone_wait_seconds:
        held = duration(now - waiting.partial_since)
        text = f"{waiting.state}{where(waiting.zone)}: only some of its hosts had machines for {held}; giving them back"
    else:
        return None
    return Ending(cause=Cause.CAPACITY, message=text, at=now, grace_seconds=budgets.failure_grace_seconds)
