"""Up to when a run's work is saved, by what its hosts report of the file `BASTION_CHECKPOINT_FILE`.

Pure. A report says how long after its command's start the program last touched the file, by the host's clock alone;
here that becomes an instant of the bastion. No two clocks are compared.
"""

from __future__ import annotations

from bastion.core.bucket.protocol import Report
from bastion.core.instants import from_rfc3339
from bastion.core.model.job_record import Attempt
from bastion.core.model.world import RunView


def saved_until(attempt: Attempt, view: RunView) -> float | None:
    """The instant of the attempt's last checkpoint, in seconds since the epoch; None: none is known.

    A checkpoint of a gang is whole when the last of its hosts has written its part, so the earliest counts of those
    that the hosts report. Hosts that never touched the file do not count: many programs save from one host only.
    """
    since = attempt.started_at if attempt.running_since is None else attempt.running_since
    since = attempt.try_since or since
    known = [
        # No report knows of what came after it was written, whatever its host's clock did.
        max(since, min(since + seconds, view.reported_at[host]))
        for host, report in view.reports.items()
        if host in view.reported_at and (seconds := _seconds_into(report)) is not None
    ]
    return min(known, default=None)


def _seconds_into(report: Report) -> float | None:
    """How long after its start the command last saved; None if it never did, or the report is not as hosts write it."""
    if not report.checkpointed_at:
        return None
    try:
        return from_rfc3339(report.checkpointed_at) - from_rfc3339(report.started_at)
    except (ValueError, OverflowError):
        return None
