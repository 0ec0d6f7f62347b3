"""The end of an attempt, from what was observed of its run.

The class of a failure decides who pays for it. With several hosts the first report may mislead: when one host is lost,
its peers fail at once, and the loss shows only later. A failure is therefore provisional until every host has sent its
last report, and nothing is deleted before it is settled (`classify`).
"""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Report
from bastion.core.errors import EXIT_NO_CODE
from bastion.core.exit_codes import ending_text
from bastion.core.instants import from_rfc3339
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import LAST_INSTANT, Attempt, Cause, Ending, PastTry
from bastion.core.model.world import RunView
from bastion.core.plain_text import plain_line
from bastion.core.reconcile import capacity
from bastion.core.reconcile.checkpoints import saved_until, steps
from bastion.core.reconcile.runs import RunPlan

_UNPROVEN = (
    "its hosts cannot prove what they report: an earlier version of the bastion started them, or the secret of the "
    "runs was replaced"
)


def _failed_by_itself(report: Report) -> bool:
    if report.phase is HostPhase.FAILED:
        return report.error in host_errors.OF_THE_USER
    return report.phase in (HostPhase.ENDED, HostPhase.EXITED) and report.exit_code != 0


def _of_this_try(plan: RunPlan, view: RunView) -> dict[int, Report]:
    """Return the reports of the present try; a host without one has not begun it."""
    return {host: r for host, r in view.reports.items() if r.try_number == plan.attempt.try_number}


def first_failure(plan: RunPlan, view: RunView) -> Report | None:
    """Return the report of the host that failed first in the present try, by the hosts' own clocks, if any."""
    bad = [report for report in _of_this_try(plan, view).values() if _failed_by_itself(report)]
    return min(bad, key=lambda r: (r.ended_at or "~", r.host), default=None)


def out_of_time(view: RunView) -> bool:
    """Whether a host ended its command because the job's time was over, before it was told to."""
    return any(report.error == host_errors.OVERTIME for report in view.reports.values())


def commands_ended(plan: RunPlan, view: RunView) -> bool:
    """Whether the command has ended by itself on all hosts, some of which may still store its output."""
    reports = _of_this_try(plan, view).values()
    return len(reports) == plan.hosts and all(r.phase in (HostPhase.ENDED, HostPhase.EXITED) for r in reports)


def stuck(plan: RunPlan, view: RunView) -> bool:
    """Whether no host has had a sign of the command for as long as the job allows; some hosts may have succeeded."""
    reports = _of_this_try(plan, view).values()
    running = [report for report in reports if report.phase is HostPhase.RUNNING]
    done = [r for r in reports if r.phase in (HostPhase.ENDED, HostPhase.EXITED) and r.exit_code == 0]
    everybody = len(running) + len(done) == plan.hosts
    return bool(running) and everybody and all(report.stuck for report in running)


def stuck_try(plan: RunPlan, view: RunView, now: float) -> PastTry:
    return _past_try(plan, view, now).model_copy(update={"stuck": True})


def past_try(plan: RunPlan, view: RunView, report: Report, now: float) -> PastTry:
    ended_at = _instant(report.ended_at)
    known = {"exit_code": report.exit_code, "failed_worker": report.host}
    return _past_try(plan, view, now if ended_at is None else ended_at).model_copy(update=known)


def _past_try(plan: RunPlan, view: RunView, ended_at: float) -> PastTry:
    began = [_instant(r.started_at) for r in _of_this_try(plan, view).values() if r.started_at]
    return PastTry(
        number=plan.attempt.try_number,
        started_at=min((instant for instant in began if instant is not None), default=None),
        ended_at=ended_at,
        checkpointed_at=saved_until(plan.attempt, view),
        **steps(plan.attempt, view),
    )


def stopped_at(attempt: Attempt, view: RunView, ending: Ending, hosts: int) -> float | None:
    """Return when the command had ended on all hosts, or was told to end; None if it never ran.

    The daemon may learn of it much later, after a pause of its own. A host's clock counts only between the start and
    that instant.
    """
    if attempt.running_since is None:
        return None
    ends = [
        ended
        for report in view.reports.values()
        if report.try_number == attempt.try_number and (ended := _instant(report.ended_at)) is not None
    ]
    last = max(ends, default=ending.at) if len(ends) == hosts else ending.at
    return last if attempt.running_since <= last < ending.at else ending.at


def _instant(text: str) -> float | None:
    try:
        return min(max(0.0, from_rfc3339(text)), LAST_INSTANT)  # a state must hold it
    except (ValueError, OverflowError):
        return None  # for display only


def _ending(
    plan: RunPlan,
    cause: Cause,
    message: str,
    now: float,
    *,
    exit_code: int | None = None,
    failed_worker: int | None = None,
    provisional: bool = False,
    gang_failed: bool = False,
) -> Ending:
    return Ending(
        cause=cause,
        message=plain_line(message)[: limits.MESSAGE_MAX_CHARS],  # hosts and APIs wrote it; every attempt stores it
        at=now,
        grace_seconds=plan.settings.budgets.failure_grace_seconds,
        exit_code=exit_code,
        failed_worker=failed_worker,
        provisional=provisional,
        gang_failed=gang_failed,
    )


def _failed(plan: RunPlan, report: Report, now: float, *, provisional: bool) -> Ending:
    code = report.exit_code
    if report.phase is HostPhase.FAILED:
        text = f"worker {report.host} {report.error}: {report.message}".rstrip(": ")
        code = code or EXIT_NO_CODE
    else:
        text = f"worker {report.host} {ending_text(code, report.message)}"
    return _ending(plan, Cause.FAILED, text, now, exit_code=code, failed_worker=report.host, provisional=provisional)


def _told_by_platform(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    """Return the ending if the platform says that the loss is the job's own doing, or that it took the machines."""
    failure = view.failure
    if failure is None or view.gang is None or view.gang.token != plan.attempt.token:
        return None
    if failure.cause == Cause.EVICTED.value:
        return _ending(plan, Cause.EVICTED, f"{plan.ref.name}: {failure.message}", now)
    if failure.cause != Cause.FAILED.value:
        return None
    code = failure.exit_code or EXIT_NO_CODE
    text = f"worker {failure.host} {failure.message}" if failure.host is not None else failure.message
    return _ending(plan, Cause.FAILED, text, now, exit_code=code, failed_worker=failure.host, gang_failed=True)


def _why_lost(view: RunView, gang: GangStatus) -> str:
    return gang.message or (view.failure.message if view.failure is not None else "") or gang.state.value


def _lost_gang(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    gang, name, failure = view.gang, plan.ref.name, view.failure
    claimed = view.claim is not None and view.claim.opened
    if failure is not None and (gang is None or gang.state is GangState.FAILED):
        # A gang that ran was created, whatever the API reports.
        cause = Cause.INFRASTRUCTURE if claimed else Cause(failure.cause)
        return _ending(plan, cause, f"{name}: {failure.message}", now)
    if plan.foreign_host:
        return None  # another machine cannot see it
    if gang is not None and gang.state in (GangState.LOST, GangState.DELETING, GangState.FAILED):
        return _ending(plan, Cause.INFRASTRUCTURE, f"{name} was lost: {_why_lost(view, gang)}", now)
    if claimed and view.gang_gone:
        return _ending(plan, Cause.INFRASTRUCTURE, f"{name} disappeared; the scheduler did not delete it", now)
    return None


def _lost_host(plan: RunPlan, view: RunView, now: float, *, told_to_stop: bool) -> Ending | None:
    """Return the ending if a host reports its own loss or is silent. `told_to_stop`: stopped hosts follow an order."""
    told = _told_by_platform(plan, view, now)
    if told is not None:
        return told  # a host that is taken away knows only that it shuts down
    unexplained = not told_to_stop and _unexplained(plan, view, now)
    for report in sorted(view.reports.values(), key=lambda r: (r.ended_at or "~", r.host)):
        if (
            report.error in host_errors.OF_THE_USER
            or report.error == host_errors.OVERTIME
            or (unexplained and report.error == host_errors.HOST_SHUT_DOWN)
        ):
            continue
        own = report.phase in (HostPhase.FAILED, HostPhase.STOPPED, HostPhase.REFUSED)
        if own and (report.error or not told_to_stop):
            text = f"worker {report.host} {report.phase.value}: {report.error or 'host'} {report.message}".rstrip()
            if report.error == host_errors.HOST_SHUT_DOWN and view.gang and view.gang.state is GangState.LOST:
                text += f"; {plan.ref.name} was lost: {view.gang.message or view.gang.state.value}"
            return _ending(plan, Cause.INFRASTRUCTURE, text, now, failed_worker=report.host)
    if plan.attempt.restart is None and len(view.reports) == plan.hosts and _all_final(view):
        return None  # the rest of the gang, which may have ended itself, matters no more
    lost = _lost_gang(plan, view, now)
    if lost is not None:
        return lost
    if view.gang is not None and view.gang.token != plan.attempt.token:
        return _ending(plan, Cause.INFRASTRUCTURE, f"a node named {plan.ref.name} already exists and is not ours", now)
    patience = limits.BASTION_HOST_HEARTBEAT_LOST_SECONDS if plan.foreign_host else limits.HEARTBEAT_LOST_SECONDS
    for host, silent in sorted(view.silent_seconds.items()):
        said = view.reports.get(host)
        # A host that sent its last report may be silent.
        if silent >= patience and not (told_to_stop and said is not None and said.phase.final):
            text = f"worker {host} sent no heartbeat for {patience:.0f} s"
            return _ending(plan, Cause.INFRASTRUCTURE, text, now, failed_worker=host)
    return None


def _unexplained(plan: RunPlan, view: RunView, now: float) -> bool:
    """Whether a pod was shut down moments ago and its platform has yet to say why: it may be the job's own doing."""
    in_pods = plan.attempt.place is not None and plan.attempt.place.pod is not None
    unharmed = view.gang is not None and view.gang.state in (GangState.WAITING, GangState.CREATING, GangState.READY)
    return (
        in_pods
        and unharmed
        and any(
            report.error == host_errors.HOST_SHUT_DOWN
            and now - view.reported_at.get(host, now) < limits.STOP_REPORT_SLACK_SECONDS
            for host, report in view.reports.items()
        )
    )


def verdict(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    """Return how the run ended by itself; None while it goes on. Reports take precedence over the state of nodes."""
    if not view.proven:
        return _ending(plan, Cause.INFRASTRUCTURE, _UNPROVEN, now)
    reports = _of_this_try(plan, view)
    restart = plan.attempt.restart
    if restart is None and len(reports) == plan.hosts and _all_exited(reports):
        failed = first_failure(plan, view)
        if failed is None:
            return _ending(plan, Cause.SUCCEEDED, "all workers exited with code 0", now, exit_code=0)
        return _failed(plan, failed, now, provisional=False)
    lost = _lost_host(plan, view, now, told_to_stop=False)
    if lost is not None:
        return lost
    if restart is not None:
        hopeless = next((r for _, r in sorted(reports.items()) if r.error in host_errors.OF_THE_USER), None)
        if hopeless is not None:
            return _failed(plan, hopeless, now, provisional=True)
        overdue = _overdue(plan, view, restart.since, now, agents_live=True)
        if overdue is not None:
            text = f"worker {overdue} did not end try {restart.failed.number} in time"
            return _ending(plan, Cause.INFRASTRUCTURE, text, now, failed_worker=overdue)
    failed = first_failure(plan, view) if restart is None else None
    if failed is not None:
        return _failed(plan, failed, now, provisional=True)
    waits = plan.attempt.waiting is not None or (view.gang is not None and view.gang.state is GangState.WAITING)
    waits = waits or capacity.awaits_admission(plan.attempt)
    since = plan.attempt.started_at if plan.attempt.up_since is None else plan.attempt.up_since
    patience = plan.provision_seconds
    came_up = len(view.reports) == plan.hosts
    if not (came_up and view.claim is not None) and not waits and now - since >= patience:
        text = f"only {len(view.reports)} of {plan.hosts} workers came up within {patience:.0f} s"
        if came_up:
            text = f"all workers came up, but none passed the gate within {patience:.0f} s"
        elif view.gang is not None and view.gang.message:
            text = f"{text}: {view.gang.message}"
        return _ending(plan, Cause.INFRASTRUCTURE, text, now)
    return None


def classify(plan: RunPlan, view: RunView, ending: Ending, now: float) -> Ending | None:
    """Return the settled ending for a provisional failure; None while a host may still report something that matters.

    It is an infrastructure failure if a host or the gang is lost, or if a host never sends its last report.
    """
    failed = first_failure(plan, view)
    first = _failed(plan, failed, ending.at, provisional=False) if failed is not None else ending
    settled = first.model_copy(update={"at": ending.at, "provisional": False})
    if len(view.reports) == plan.hosts and _all_exited(view.reports):
        return settled
    if _unexplained(plan, view, now):
        return None
    lost = _lost_host(plan, view, ending.at, told_to_stop=True)
    if lost is not None:
        return _with_failure(lost, settled)
    if not _all_final(view):
        overdue = _overdue(plan, view, ending.at, now)
        if overdue is None:
            return None
        if view.reports[overdue].phase is not HostPhase.ENDED:  # otherwise only its last output is missing
            text = f"worker {overdue} did not report how it ended"
            return _with_failure(_ending(plan, Cause.INFRASTRUCTURE, text, ending.at, failed_worker=overdue), settled)
    missing = next((host for host in range(plan.hosts) if host not in view.reports), None)
    if missing is not None and failed is not None and _ran_seconds(failed) >= limits.MISSING_HOST_SECONDS:
        text = f"worker {missing} did not come up"
        return _with_failure(_ending(plan, Cause.INFRASTRUCTURE, text, ending.at, failed_worker=missing), settled)
    return settled


def _with_failure(lost: Ending, failed: Ending) -> Ending:
    """Return the loss, with the failure that came with it in the message."""
    text = f"{lost.message}; also: {failed.message}"[: limits.MESSAGE_MAX_CHARS]
    told = lost.gang_failed or lost.cause is Cause.EVICTED
    return lost.model_copy(update={"cause": lost.cause if told else Cause.INFRASTRUCTURE, "message": text})


def _ran_seconds(report: Report) -> float:
    began, ended = _instant(report.started_at), _instant(report.ended_at)
    return 0.0 if began is None or ended is None else ended - began


def _all_exited(reports: Mapping[int, Report]) -> bool:
    return all(report.phase is HostPhase.EXITED for report in reports.values())


def _all_final(view: RunView) -> bool:
    return all(report.phase.final for report in view.reports.values())


def _overdue(plan: RunPlan, view: RunView, since: float, now: float, *, agents_live: bool = False) -> int | None:
    """Return a host that should have ended since the order at `since`; None if there is none. Storing outputs takes
    longer.

    `agents_live`: the host should be waiting for the next try; a final report is not enough.
    """
    told = plan.settings.budgets.failure_grace_seconds + limits.STOP_REPORT_SLACK_SECONDS
    found = None
    for host, report in sorted(view.reports.items()):
        if (report.phase.final and not agents_live) or report.try_number > plan.attempt.try_number:
            continue
        ended = report.phase is HostPhase.ENDED
        if now - since >= told + (limits.OUTPUT_FINAL_SECONDS if ended else limits.HEARTBEAT_LOST_SECONDS):
            if not ended:
                return host  # outranks a host whose end is known
            found = host if found is None else found
    return found
