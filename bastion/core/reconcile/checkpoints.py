"""A run's last checkpoint and its steps, from its hosts' reports of `BASTION_CHECKPOINT_FILE` and `BASTION_STEP_FILE`.

A report gives the seconds from the command's start to the checkpoint, by the host's clock alone. No two clocks are
compared.
"""

from __future__ import annotations

from typing import TypedDict

from bastion.core.bucket.protocol import Report
from bastion.core.instants import from_rfc3339
from bastion.core.model.job_record import Attempt
from bastion.core.model.world import RunView


def saved_until(attempt: Attempt, view: RunView) -> float | None:
    """Return when the attempt last saved its work, in seconds since the epoch; None if unknown.

    The earliest checkpoint of its hosts counts. Hosts that never touched the file do not: many programs save from one
    host.
    """
    since = attempt.started_at if attempt.running_since is None else attempt.running_since
    since = attempt.try_since or since
    known = [
        # A report cannot know what came after it, whatever its host's clock says.
        max(since, min(since + seconds, view.reported_at[host]))
        for host, report in view.reports.items()
        if host in view.reported_at and (seconds := _seconds_into(report)) is not None
    ]
    return min(known, default=None)


class Steps(TypedDict):
    first_step: int | None
    last_step: int | None


def steps(attempt: Attempt, view: RunView) -> Steps:
    """Return the first and the highest step of the present try, over all hosts; None where none is known."""
    reports = [report for report in view.reports.values() if report.try_number == attempt.try_number]
    return Steps(
        first_step=min((r.first_step for r in reports if r.first_step is not None), default=None),
        last_step=max((r.last_step for r in reports if r.last_step is not None), default=None),
    )


def _seconds_into(report: Report) -> float | None:
    """Seconds from the command's start to its last checkpoint; None if there is none or the report is malformed."""
    if not report.checkpointed_at:
        return None
    try:
        return from_rfc3339(report.checkpointed_at) - from_rfc3339(report.started_at)
    except (ValueError, OverflowError):
        return None
