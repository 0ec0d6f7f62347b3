"""What `bastion why` says of a live job's own limits: its time, the jobs that it awaits, its group."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.cli.output import plain
from bastion.client import JobInfo
from bastion.core.instants import duration, exact_duration, to_rfc3339
from bastion.core.model.job_limits import NO_LIMITS, On
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.reconcile.run_time import held_since


def lines(info: JobInfo, now: float) -> Iterator[str]:
    record = info.record
    if record is not None and record.job.limits is not NO_LIMITS:
        yield from _time(record, now)
        yield from _after(record)
        if record.job.limits.group:
            yield f"  group {plain(record.job.limits.group)}"
    if record is not None and record.awaits_group:
        until = record.queued_at + (record.started_job.limits.cleanup_after_group_seconds or 0)
        yield f"  cleans up when no other job of its group is left, at the latest {to_rfc3339(until)}"
    elif record is not None and record.cleanups > 1:
        yield f"  try {record.cleanups} of {record.started_job.limits.cleanup_tries} of its cleanup command"


def _after(record: JobRecord) -> Iterator[str]:
    wanted = record.job.limits
    if record.status is not Status.PENDING:
        return
    for each in wanted.after:
        what = "success" if each.on is On.SUCCEEDED else "end"
        met = "; that has come" if each.uid in (record.after_met or ()) else ""
        yield f"  starts after the {what} of {plain(each.job)} ({each.uid}){met}"
    if wanted.after_at_most_seconds is not None:
        until = to_rfc3339(record.queued_at + wanted.after_at_most_seconds)
        yield f"  waits for that until {until} (--after_at_most)"


def _time(record: JobRecord, now: float) -> Iterator[str]:
    if record.job.limits.max_run_seconds is None or record.outcome is not None:
        return
    most = record.job.limits.max_run_seconds
    since = held_since(record, record.attempt) if record.attempt is not None else None
    left = most - record.held_seconds - (0.0 if since is None else max(0.0, now - since))
    what = "hold its slices" if record.job.runner is not None else "run"
    yield f"  may {what} for {exact_duration(most)} (--max_run); {duration(left)} left"
