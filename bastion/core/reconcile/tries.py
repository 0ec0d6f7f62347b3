"""Tries: a command that failed by the user's doing runs again on the same nodes, behind the same claim.

Two orders lead to the next try, so that no host begins it while another is still in the last one: RESTART (end the
command, wait for try t+1), then RUN once every host waits. A loss in between ends the attempt as usual, and the failed
try does not count.
"""

from __future__ import annotations

from bastion.core.bucket.protocol import HostPhase
from bastion.core.model.job_record import Attempt, Ending, JobRecord, Restart
from bastion.core.model.world import RunView
from bastion.core.reconcile import attempt_end
from bastion.core.reconcile.runs import RunPlan


def begin(plan: RunPlan, view: RunView, now: float) -> Attempt | None:
    """Return the attempt with the next try under way, if a try failed and another may follow; otherwise None."""
    attempt, runner = plan.attempt, plan.spec.runner
    failed = attempt_end.first_failure(plan, view)
    if failed is None or runner is None or plan.on_bastion or attempt.try_number >= runner.max_tries:
        return None
    if any(report.phase is HostPhase.FAILED for report in view.reports.values()):
        return None  # its code or setup would fail again
    restart = Restart(failed=attempt_end.past_try(plan, view, failed, now), since=now)
    return attempt.model_copy(update={"restart": restart})


def go_on(plan: RunPlan, view: RunView, now: float) -> Attempt:
    """Return the attempt after a look at its restarting hosts; the same object if nothing changed."""
    attempt, restart = plan.attempt, plan.attempt.restart
    assert restart is not None  # checked by the caller
    following = attempt.try_number + 1
    if len(view.reports) == plan.hosts and all(r.try_number >= following for r in view.reports.values()):
        tries = (*attempt.tries, restart.failed)
        changes = {"try_number": following, "tries": tries, "try_since": now, "restart": None}
        return attempt.model_copy(update=changes)
    report = attempt_end.first_failure(plan, view)
    earlier = attempt_end.past_try(plan, view, report, now) if report is not None else None
    if earlier is None or earlier.ended_at >= restart.failed.ended_at:
        return attempt
    return attempt.model_copy(update={"restart": restart.model_copy(update={"failed": earlier})})


def history_text(plan: RunPlan, ending: Ending) -> str:
    """Return the history line for a failed try that another one follows."""
    most = plan.spec.runner.max_tries if plan.spec.runner is not None else 1
    return f"try {plan.attempt.try_number} of {most} failed: {ending.message}; restarting the command"


def first_number(record: JobRecord) -> int:
    """Return the number of a new attempt's first try."""
    return record.failed_tries + 1
