"""Builds the status document from what a tick saw and decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bastion.core import limits
from bastion.core.bucket.protocol import HostPhase
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import JobRecord, Waiting
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView
from bastion.core.plain_text import plain_line
from bastion.core.reconcile.checkpoints import saved_until
from bastion.core.status.document import (
    BacklogEntry,
    CapacityWait,
    DaemonEntry,
    IdleEntry,
    InvalidEntry,
    JobEntry,
    Phase,
    PoolEntry,
    ProjectEntry,
    QuotaEntry,
    StatusDocument,
    WaitReason,
)
from scheduler import Decision, Plan, ReasonCode, Snapshot


def phase(record: JobRecord) -> Phase:
    attempt = record.attempt
    if record.status is Status.PENDING:
        return Phase.QUEUED
    if record.status is Status.COMPLETED:
        return Phase.COMPLETED
    if record.status is Status.CLEANING:
        return Phase.CLEANING
    if attempt is None or attempt.ending is not None:
        return Phase.STOPPING
    return Phase.RUNNING if attempt.running_since is not None else Phase.PROVISIONING


def _reason(decision: Decision | None, since: float | None) -> WaitReason | None:
    if decision is None or decision.reason is None:
        return None
    reason = decision.reason
    return WaitReason(
        code=reason.code.value,
        message=plain_line(reason.message),
        since=reason.since if since is None else since,
        holders=tuple(reason.holders),
        unblock=plain_line(reason.unblock),
        also=tuple(code.value for code in reason.also),
    )


def _waits_for_nodes(record: JobRecord, view: JobView | None) -> WaitReason | None:
    """The reason of a job that waits for nodes of an attempt that its state does not know."""
    if view is None or not view.orphan_gangs:
        return None
    return WaitReason(
        code=ReasonCode.BACKOFF.value,
        message="nodes of an earlier attempt still exist; deleting them first",
        since=record.queued_at,
        unblock="the nodes are deleted",
    )


def _checkpoint(record: JobRecord, view: JobView | None, before: JobEntry | None) -> float | None:
    """The time of the job's last checkpoint, for display; changes only after a pause, to save writes of the status."""
    attempt = record.attempt
    saved_at = saved_until(attempt, view.attempt) if attempt is not None and view is not None else None
    if saved_at is None or attempt is None:
        return None
    if before is not None and (before.uid, before.attempt) == (record.uid, attempt.number):
        shown = before.checkpointed_at
        if shown is not None and abs(saved_at - shown) < limits.CHECKPOINT_REPORT_SECONDS / 2:
            return shown
    return saved_at


def _host_problem(record: JobRecord, view: JobView | None) -> dict[str, Any]:
    if record.attempt is None or record.attempt.ending is not None or view is None or view.attempt.gang is None:
        return {}
    message = view.attempt.gang.message
    missing = len(view.attempt.reports) < record.job.hosts
    return {"host_problem": message[: limits.MESSAGE_MAX_CHARS]} if message and missing else {}


def _waiting(waiting: Waiting, gang: GangStatus | None) -> CapacityWait:
    """The wait as recorded, with what the platform says of it now, which is not recorded."""
    message = plain_line(gang.waiting_message) if gang is not None and gang.state is GangState.WAITING else ""
    return CapacityWait(
        state=waiting.state,
        zone=waiting.zone,
        since=waiting.since,
        message=message[: limits.MESSAGE_MAX_CHARS] or None,
        partial_since=waiting.partial_since,
    )


def _place(record: JobRecord, view: JobView | None) -> dict[str, Any]:
    attempt, runner = record.attempt, record.job.runner
    if attempt is None:
        return {}
    found: dict[str, Any] = {}
    if attempt.place is not None and attempt.place.zone:
        found["zone"] = attempt.place.zone
    if attempt.waiting is not None and attempt.ending is None:
        found["waiting"] = _waiting(attempt.waiting, view.attempt.gang if view is not None else None)
    if runner is not None and runner.max_tries > 1:
        found |= {"try_number": attempt.try_number + (attempt.restart is not None), "max_tries": runner.max_tries}
    return found


def job_entry(
    record: JobRecord,
    view: JobView | None,
    decision: Decision | None,
    since: float | None = None,
    before: JobEntry | None = None,
) -> JobEntry:
    """One job's entry. `since`: start of its present reason; `before`: its entry in the previous status, if any."""
    spec, attempt = record.job, record.attempt
    reports = view.attempt.reports.values() if view is not None and attempt is not None else ()
    waiting = record.status is Status.PENDING
    ending = attempt.ending if attempt else None
    return JobEntry(
        name=record.name,
        uid=record.uid,
        status=record.status,
        phase=phase(record).value,
        project_id=spec.project_id,
        user_id=spec.user_id,
        priority=spec.priority,
        resources=dict(spec.resources),
        instance_type=spec.runner.instance_type.name if spec.runner else None,
        num_replicas=spec.runner.num_replicas if spec.runner else None,
        queued_at=record.queued_at,
        attempt=attempt.number if attempt else None,
        attempts_before=record.next_attempt - 1 - (attempt is not None),
        started_at=attempt.started_at if attempt else None,
        running_since=attempt.running_since if attempt else None,
        hosts=spec.hosts if attempt else None,
        hosts_up=len(list(reports)) if attempt else None,
        hosts_running=sum(r.phase is HostPhase.RUNNING for r in reports) if attempt else None,
        tier=attempt.tier if attempt else None,
        stopping=plain_line(f"{ending.cause.value}: {ending.message}") if ending else None,
        position=decision.position if decision and waiting else None,
        position_in_project=decision.position_in_project if decision and waiting else None,
        reason=(_reason(decision, since) or _waits_for_nodes(record, view)) if waiting else None,
        problem=(plain_line(view.frozen or view.spec_problem) or None) if view else None,
        expected_duration_seconds=spec.runner.expected_duration_seconds if spec.runner else None,
        checkpointed_at=_checkpoint(record, view, before),
        labels=spec.labels or None,
        **_place(record, view),
        **_host_problem(record, view),
    )


def idle_entry(snapshot: Snapshot) -> IdleEntry:
    kept: dict[str, dict[str, tuple[tuple[float, int], ...]]] = {}
    for project, by_type in snapshot.held_recently.items():
        for resource_type, steps in by_type.items():
            past = tuple((until, units) for until, units in steps if until < math.inf)
            if past:
                kept.setdefault(project, {})[resource_type] = past
    return IdleEntry(kept=kept, restart_seconds=dict(snapshot.restart_seconds))


class JobEntries:
    """Entries of the jobs, reused while their inputs stay the same."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[JobRecord, JobView | None, Decision | None, float | None, JobEntry]] = {}

    def of(
        self,
        records: Mapping[str, JobRecord],
        views: Mapping[str, JobView],
        plan: Plan,
        waiting_since: Mapping[str, float],
    ) -> list[JobEntry]:
        decisions = {decision.name: decision for decision in plan.decisions}
        before, self._made = self._made, {}
        for name in sorted(records):
            record, view, decision, since = records[name], views.get(name), decisions.get(name), waiting_since.get(name)
            made = before.get(name)
            if made is None or made[0] is not record or made[1] is not view or made[3] != since or made[2] != decision:
                shown = made[4] if made is not None else None
                entry = job_entry(record, view, decision, since, shown)
                made = (record, view, decision, since, shown if shown is not None and shown == entry else entry)
            self._made[name] = made
        return [made[4] for made in self._made.values()]


def build(
    *,
    bastion: str,
    root: str,
    daemon: DaemonEntry,
    quota: QuotaEntry,
    alarms: Iterable[str],
    backlog: Sequence[BacklogEntry],
    jobs: Sequence[JobEntry],
    views: Mapping[str, JobView],
    plan: Plan,
    idle: IdleEntry,
) -> StatusDocument:
    """The status without its usage. `jobs`: `JobEntries` of the same views and plan."""
    return StatusDocument(
        bastion=bastion,
        root=root,
        daemon=daemon,
        quota=quota,
        alarms=tuple(sorted({plain_line(alarm) for alarm in alarms})),
        jobs=tuple(jobs),
        backlog=tuple(backlog),
        invalid=tuple(
            InvalidEntry(name=name, problem=plain_line(view.spec_problem))
            for name, view in sorted(views.items())
            if view.spec_problem
        ),
        projects={
            name: ProjectEntry(entitlement=dict(usage.entitlement), usage=dict(usage.usage), demand=dict(usage.demand))
            for name, usage in sorted(plan.projects.items())
        },
        pool={
            resource_type: PoolEntry(total=usage.total, used=usage.used, free=usage.free)
            for resource_type, usage in sorted(plan.pool.items())
        },
        idle=idle,
    )
