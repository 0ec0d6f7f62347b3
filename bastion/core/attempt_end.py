"""How an attempt ends: what its run's observations mean, and what becomes of the job after it.

Layer: core, pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bastion.core import limits
from bastion.core.job_record import Cause, Ending, JobRecord, Outcome, PastAttempt
from bastion.core.lifecycle import Status
from bastion.core.protocol import HostPhase, Report
from bastion.core.runs import RunPlan
from bastion.core.slices import SliceState
from bastion.core.world import RunView


def _first_failure(reports: Mapping[int, Report]) -> Report | None:
    bad = [r for r in reports.values() if r.phase is HostPhase.EXITED and r.exit_code != 0]
    return min(bad, key=lambda r: (r.ended_at, r.host), default=None)


def _ending(cause: Cause, message: str, now: float, **details: int | None) -> Ending:
    return Ending(
        cause=cause,
        message=message[: limits.MESSAGE_MAX_CHARS],  # hosts and APIs wrote it, and every attempt keeps it
        at=now,
        grace_seconds=limits.FAILURE_GRACE_SECONDS,
        exit_code=details.get("exit_code"),
        failed_worker=details.get("failed_worker"),
    )


def _lost(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    """Whether the run's gang was never created, or is not what it was."""
    node, name = view.node, plan.ref.name
    if view.failure is not None and (node is None or node.state is SliceState.FAILED):
        cause, message = view.failure
        return _ending(Cause(cause), f"{name}: {message}", now)
    if plan.foreign_host:
        return None  # it is not seen from here
    if node is not None and node.state in (SliceState.LOST, SliceState.DELETING, SliceState.FAILED):
        return _ending(Cause.INFRASTRUCTURE, f"{name} was lost: {node.message or node.state.value}", now)
    claimed = view.claim is not None and view.claim.token == plan.attempt.token
    if claimed and view.node_gone:
        return _ending(Cause.INFRASTRUCTURE, f"{name} is gone though nobody here deleted it", now)
    return None


def verdict(plan: RunPlan, view: RunView, now: float) -> Ending | None:
    """Whether the run has ended by itself, and why; None while it goes on.

    What hosts reported comes before what became of their nodes: a host may report and vanish.
    """
    reports = view.reports
    failed = _first_failure(reports)
    if failed is not None:
        text = f"worker {failed.host} exited with {failed.exit_code}"
        return _ending(Cause.FAILED, text, now, exit_code=failed.exit_code, failed_worker=failed.host)
    if len(reports) == plan.hosts and all(r.phase is HostPhase.EXITED for r in reports.values()):
        return _ending(Cause.SUCCEEDED, "every worker exited with 0", now, exit_code=0)
    for report in sorted(reports.values(), key=lambda r: r.host):
        if report.phase in (HostPhase.FAILED, HostPhase.STOPPED, HostPhase.REFUSED):
            text = f"worker {report.host} {report.phase.value}: {report.error or 'host'} {report.message}".rstrip()
            return _ending(Cause.INFRASTRUCTURE, text, now, failed_worker=report.host)
    lost = _lost(plan, view, now)
    if lost is not None:
        return lost
    if view.node is not None and view.node.token != plan.attempt.token:
        return _ending(Cause.INFRASTRUCTURE, f"a node named {plan.ref.name} exists that is not ours", now)
    patience = limits.BASTION_HOST_BEAT_LOST_SECONDS if plan.foreign_host else limits.BEAT_LOST_SECONDS
    for host, silent in sorted(view.silent_seconds.items()):
        if silent >= patience:
            text = f"worker {host} has not been heard of for {patience:.0f} s"
            return _ending(Cause.INFRASTRUCTURE, text, now, failed_worker=host)
    if len(reports) < plan.hosts and now - plan.attempt.started_at >= limits.PROVISION_TIMEOUT_SECONDS:
        text = f"only {len(reports)} of {plan.hosts} hosts came up within {limits.PROVISION_TIMEOUT_SECONDS:.0f} s"
        return _ending(Cause.INFRASTRUCTURE, text, now)
    return None


def backoff_seconds(failures: int) -> float:
    """The wait before the next attempt, after so many losses in a row."""
    return min(limits.INFRASTRUCTURE_BACKOFF_SECONDS * 2.0 ** (failures - 1), limits.INFRASTRUCTURE_BACKOFF_MAX_SECONDS)


def aftermath(record: JobRecord, past: PastAttempt, ending: Ending, now: float) -> tuple[str, dict[str, Any]]:
    """What becomes of a job whose attempt is over.

    Returns:
        The line for its history, and the record's fields that change.
    """
    match ending.cause:
        case Cause.SUCCEEDED:
            return _outcome("succeeded", 0, ending)
        case Cause.FAILED | Cause.OVERTIME:
            return _outcome("failed", ending.exit_code or 1, ending)
        case Cause.REFUSED:
            return _outcome("refused", 64, ending)
        case Cause.INFRASTRUCTURE:
            return _infrastructure_lost(record, past, ending, now)
        case Cause.CAPACITY:
            not_before = now + limits.INFRASTRUCTURE_BACKOFF_SECONDS
            changes = {"status": Status.PENDING, "not_before": not_before, "stockout": True}
            return f"waits for capacity: {ending.message}", changes
        case Cause.EVICTED | Cause.UPDATED | Cause.CANCELLED:
            return f"queued again: {ending.cause.value}: {ending.message}", {"status": Status.PENDING}


def _infrastructure_lost(
    record: JobRecord, past: PastAttempt, ending: Ending, now: float
) -> tuple[str, dict[str, Any]]:
    ran = 0.0 if past.running_since is None else ending.at - past.running_since
    failures = 1 if ran >= limits.INFRASTRUCTURE_RESET_SECONDS else record.infrastructure_failures + 1
    if failures >= limits.INFRASTRUCTURE_ATTEMPTS_MAX:
        text, changes = _outcome("failed", 75, ending)
        return text, {**changes, "infrastructure_failures": failures}
    wait = backoff_seconds(failures)
    changes = {"status": Status.PENDING, "infrastructure_failures": failures, "not_before": now + wait}
    return f"queued again in {wait:.0f} s: {ending.message}", changes


def _outcome(outcome: str, exit_code: int, ending: Ending) -> tuple[str, dict[str, Any]]:
    result = Outcome(outcome=outcome, exit_code=exit_code, message=ending.message, failed_worker=ending.failed_worker)
    return f"{outcome}: {ending.message}", {"status": Status.CLEANING, "outcome": result}
