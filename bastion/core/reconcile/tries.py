"""Tries: a command that failed by the user's own doing runs again where it is, on the same nodes, behind one claim.

Two orders lead from one try to the next, so that no host begins a try while another is still at the
one before: RESTART (end the command, wait for try t+1), and, when every host waits for it, RUN. A loss in between ends
the attempt as any loss does, and the try that failed beside it is not counted.
"""

from __future__ import annotations

from bastion.core.bucket.protocol import HostPhase
from bastion.core.model.job_record import Attempt, Ending, JobRecord, Restart
from bastion.core.model.world import RunView
from bastion.core.reconcile import attempt_end
from bastion.core.reconcile.runs import RunPlan


def begin(plan: RunPlan, view: RunView, now: float) -> Attempt | None:
    """The attempt on its way to the next try, if a try failed and another may follow; else None."""
    attempt, runner = plan.attempt, plan.spec.runner
    failed = attempt_end.first_failure(plan, view)
    if failed is None or runner is None or plan.on_bastion or attempt.try_number >= runner.max_tries:
        return None
    if any(report.phase is HostPhase.FAILED for report in view.reports.values()):
        return None  # that host's code or setup will be no better the next time
    restart = Restart(failed=attempt_end.past_try(plan, view, failed, now), since=now)
    return attempt.model_copy(update={"restart": restart})


def go_on(plan: RunPlan, view: RunView, now: float) -> Attempt:
    """The attempt after a look at hosts that restart; the same object if nothing of that is new."""
    attempt, restart = plan.attempt, plan.attempt.restart
    assert restart is not None  # the caller looked
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


def told(plan: RunPlan, ending: Ending) -> str:
    """What the history says of a try that failed."""
    most = plan.spec.runner.max_tries if plan.spec.runner is not None else 1
    return f"try {plan.attempt.try_number} of {most} failed: {ending.message}; its hosts are readied for the next"


def first_number(record: JobRecord) -> int:
    """The number of a new attempt's first try."""
    return record.failed_tries + 1
