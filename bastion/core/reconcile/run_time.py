"""The time that a job may run: its own limit (`--max_run`) and its project's (`maximum_runtime_hours`).

`--max_run` counts the time in which the job holds its slices, over all attempts: from when the platform has its gang
until the gang is gone. Waiting for capacity does not count. Of a job without a slice its command's time counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.bucket.protocol import TimeLeft
from bastion.core.instants import exact_duration
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import Attempt, Cause, Ending, JobRecord
from bastion.core.model.world import RunView
from bastion.core.reconcile import capacity
from quota import Policy

# An attempt with such an end never had its slices.
_HELD_NOTHING = (Cause.CAPACITY, Cause.REFUSED, Cause.SUPERSEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtime:
    """A limit that was reached. `own`: the job's."""

    message: str
    own: bool


def with_hold(record: JobRecord, attempt: Attempt, view: RunView, now: float) -> Attempt:
    """Return the attempt with when its slices came, if its job limits that; the same object if nothing changed."""
    if record.job.limits.max_run_seconds is None or record.job.runner is None or attempt.running_since is not None:
        return attempt
    waits = attempt.waiting is not None or capacity.awaits_admission(attempt)
    there = view.gang is not None and view.gang.state in (GangState.CREATING, GangState.READY)
    since = None if waits else now if there and attempt.held_since is None else attempt.held_since
    return attempt if since == attempt.held_since else attempt.model_copy(update={"held_since": since})


def held_since(record: JobRecord, attempt: Attempt) -> float | None:
    """When the attempt's time began; None: not yet."""
    if record.job.runner is None:
        return attempt.running_since
    if attempt.held_since is not None:
        return attempt.held_since
    return attempt.up_since if attempt.up_since is not None else attempt.running_since


def held_seconds(
    record: JobRecord, attempt: Attempt, ending: Ending, now: float, *, stopped_at: float | None = None
) -> float:
    """The time of all attempts, with this one, which is over. `stopped_at`: when its command had ended."""
    since = held_since(record, attempt)
    if since is None or ending.cause in _HELD_NOTHING:
        return record.held_seconds
    until = stopped_at if record.job.runner is None and stopped_at is not None else now
    return record.held_seconds + max(0.0, until - since)


def time_left(record: JobRecord, attempt: Attempt, now: float, grace_seconds: float) -> TimeLeft | None:
    """What the hosts of the attempt are told of `--max_run`; None: it has no such limit."""
    most = record.job.limits.max_run_seconds
    if most is None:
        return None
    left, since = most - record.held_seconds, held_since(record, attempt)
    running = attempt.running_since is not None and since is not None
    if running and since is not None:
        left -= now - since
    return TimeLeft(seconds=max(0.0, left), from_order=running, grace_seconds=grace_seconds)


def most_from_start(record: JobRecord) -> float | None:
    """How long its attempt may hold its slices, counted from the attempt's start; None: no limit of its own."""
    most, attempt = record.job.limits.max_run_seconds, record.attempt
    if most is None:
        return None
    left = max(0.0, most - record.held_seconds)
    since = held_since(record, attempt) if attempt is not None else None
    return left if attempt is None or since is None else left + since - attempt.started_at


def used_up(record: JobRecord) -> str:
    """Why no further attempt may begin; empty: it may."""
    most = record.job.limits.max_run_seconds
    return reached(record) if most is not None and record.held_seconds >= most else ""


def reached(record: JobRecord) -> str:
    """The message of a job that reached its own limit."""
    most = record.job.limits.max_run_seconds or 0
    attempts = record.next_attempt - 1
    over = f" over {attempts} attempts" if attempts > 1 else ""
    what = "held its slices" if record.job.runner is not None else "ran"
    return f"{what} for {exact_duration(most)}{over}, the limit set by --max_run"


def overtime(record: JobRecord, attempt: Attempt, policy: Policy | None, now: float) -> Overtime | None:
    """The first limit that the attempt has reached, if any."""
    found: list[tuple[float, Overtime]] = []
    most, since = record.job.limits.max_run_seconds, held_since(record, attempt)
    if most is not None and since is not None:
        found.append((since + most - record.held_seconds, Overtime(message=reached(record), own=True)))
    project = record.job.project_id
    longest = policy.rules(project).maximum_runtime_seconds if policy is not None else None
    if longest is not None and attempt.running_since is not None:
        text = f"ran longer than the maximum runtime of project {project}, {longest / 3600:g} h (maximum_runtime_hours)"
        found.append((attempt.running_since + longest, Overtime(message=text, own=False)))
    at, first = min(found, key=lambda each: each[0], default=(0.0, None))
    return first if first is not None and now >= at else None
