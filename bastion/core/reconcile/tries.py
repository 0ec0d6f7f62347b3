"""Tries: a command that failed by the user's doing, or is stuck, runs again on the same nodes, behind the same claim.

Two orders lead to the next try, so that no host begins it while another is still in the last one: RESTART (end the
command, wait for try t+1), then RUN once every host waits. A loss in between ends the attempt as usual, and the failed
try does not count.
"""

from __future__ import annotations

from typing import Final

from bastion.core import limits
from bastion.core.bucket.protocol import HostPhase
from bastion.core.instants import duration
from bastion.core.model.job_record import Attempt, Ending, JobRecord, Restart
from bastion.core.model.world import RunView
from bastion.core.reconcile import attempt_end
from bastion.core.reconcile.runs import RunPlan


def begin(plan: RunPlan, view: RunView, now: float) -> Attempt | None:
    """Return the attempt with the next try under way, if a try failed and another may follow; otherwise None."""
    attempt, runner = plan.attempt, plan.spec.runner
    failed = attempt_end.first_failure(plan, view)
    if failed is None or runner is None or plan.on_bastion or attempt.try_number >= plan.last_try:
        return None
    if any(report.phase is HostPhase.FAILED for report in view.reports.values()):
        return None  # its code or setup would fail again
    restart = Restart(failed=attempt_end.past_try(plan, view, failed, now), since=now)
    return attempt.model_copy(update={"restart": restart})


def when_stuck(record: JobRecord, plan: RunPlan, view: RunView, now: float) -> tuple[str, Attempt | None, int]:
    """Return what follows a stuck try: the history line, the attempt with the next try under way, and its number in a
    row; no attempt if the budget is used up, and the line is the job's end.
    """
    attempt, runner = plan.attempt, plan.spec.runner
    limit = runner.stuck_after_seconds or 0 if runner is not None else 0
    text = f"no output, checkpoint or step on any worker for {duration(limit)} (--stuck_after)"
    since = attempt.try_since or attempt.running_since or attempt.started_at
    lived = now - since - limit
    in_a_row = 1 if lived >= limits.STUCK_RESET_SECONDS else record.stuck_in_a_row + 1
    most = plan.settings.budgets.stuck_restarts
    if in_a_row > most:
        times = f", {in_a_row} times in a row" if most else ""
        return f"Stuck: {text}{times}; the log has the stacks of its processes", None, in_a_row
    restart = Restart(failed=attempt_end.stuck_try(plan, view, now), since=now)
    text = f"try {attempt.try_number} is stuck: {text}; restarting the command ({in_a_row} of {most} in a row)"
    return text, attempt.model_copy(update={"restart": restart}), in_a_row


def go_on(plan: RunPlan, view: RunView, now: float) -> Attempt:
    """Return the attempt after a look at its restarting hosts; the same object if nothing changed."""
    attempt, restart = plan.attempt, plan.attempt.restart
    assert restart is not None  # checked by the caller
    following = attempt.try_number + 1
    if len(view.reports) == plan.hosts and all(r.try_number >= following for r in view.reports.values()):
        tries = (*attempt.tries, restart.failed)
        stuck = attempt.stuck_tries + restart.failed.stuck
        changes = {"try_number": following, "tries": tries, "try_since": now, "restart": None, "stuck_tries": stuck}
        return attempt.model_copy(update=changes)
    if restart.failed.stuck:
        return attempt  # its hosts end their commands because they are told to
    report = attempt_end.first_failure(plan, view)
    earlier = attempt_end.past_try(plan, view, report, now) if report is not None else None
    if earlier is None or earlier.ended_at >= restart.failed.ended_at:
        return attempt
    return attempt.model_copy(update={"restart": restart.model_copy(update={"failed": earlier})})


def history_text(plan: RunPlan, ending: Ending) -> str:
    """Return the history line for a failed try that another one follows."""
    return f"try {plan.attempt.try_number} of {plan.last_try} failed: {ending.message}; restarting the command"


# The fields of a record that count tries, for another spec.
NONE_BEFORE: Final = {"failed_tries": 0, "stuck_tries": 0, "stuck_in_a_row": 0}


def first_number(record: JobRecord) -> int:
    """Return the number of a new attempt's first try."""
    return record.failed_tries + 1
