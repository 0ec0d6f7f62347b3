"""Builds the status document from what a tick saw and decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bastion.core import limits
from bastion.core.bucket.protocol import HostPhase
from bastion.core.model.awaiting import Awaiting
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import JobRecord, Waiting
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.mode import Mode
from bastion.core.model.world import JobView, Outside, World
from bastion.core.plain_text import plain_line
from bastion.core.reconcile.checkpoints import saved_until, steps
from bastion.core.reconcile.groups import Groups
from bastion.core.reconcile.run_time import most_from_start
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
from bastion.core.status.queues import queue_entry
from bastion.core.status.start_held import start_held
from scheduler import Decision, Plan, ReasonCode, Snapshot, Verdict


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
    if record.attempt is None or view is None or view.attempt.gang is None:
        return {}
    reports = view.attempt.reports.values()
    waits = next((each for each in reports if each.phase is HostPhase.PREPARING and each.message), None)
    if waits is not None and record.attempt.ending is None:
        return {"host_problem": plain_line(f"worker {waits.host} is {waits.message}")[: limits.MESSAGE_MAX_CHARS]}
    message = plain_line(view.attempt.gang.message)
    missing = len(view.attempt.reports) < record.job.hosts
    if record.attempt.ending is not None:
        missing = view.attempt.gang.state is GangState.DELETING
    return {"host_problem": message[: limits.MESSAGE_MAX_CHARS]} if message and missing else {}


def _waiting(waiting: Waiting, gang: GangStatus | None) -> CapacityWait:
    """The wait as recorded, with what the platform says of it now, which is not recorded."""
    message = plain_line(gang.waiting_message) if gang is not None and gang.state is GangState.WAITING else ""
    return CapacityWait(
        state=waiting.state,
        zone=waiting.zone,
        since=waiting.since,
        queue=waiting.queue or None,
        message=message[: limits.MESSAGE_MAX_CHARS] or None,
        partial_since=waiting.partial_since,
    )


def _inputs(record: JobRecord, view: JobView | None) -> dict[str, Any]:
    """How far the host is that has most of its inputs to fetch."""
    if record.attempt is None or view is None:
        return {}
    found = [
        (report.input_bytes - (report.fetched_bytes or 0), report)
        for report in view.attempt.reports.values()
        if report.phase is HostPhase.PREPARING and report.input_bytes
    ]
    _, last = max(found, key=lambda pair: pair[0], default=(0, None))
    return {"fetched_bytes": last.fetched_bytes or 0, "input_bytes": last.input_bytes} if last is not None else {}


def _steps(record: JobRecord, view: JobView | None) -> dict[str, Any]:
    attempt = record.attempt
    return {**steps(attempt, view.attempt)} if attempt is not None and view is not None else {}


def _place(record: JobRecord, view: JobView | None) -> dict[str, Any]:
    attempt, runner = record.attempt, record.job.runner
    if attempt is None:
        return {}
    gang = view.attempt.gang if view is not None else None
    queue = queue_entry(record, gang)
    found: dict[str, Any] = {"queue": queue} if queue is not None else {}
    if attempt.place is not None and attempt.place.zone:
        found["zone"] = attempt.place.zone
    if attempt.waiting is not None and attempt.ending is None:
        found["waiting"] = _waiting(attempt.waiting, gang)
    if runner is None:
        return found
    restart = attempt.restart
    stuck = attempt.stuck_tries + (restart is not None and restart.failed.stuck)
    if runner.max_tries > 1 or stuck:
        found |= {"try_number": attempt.try_number + (restart is not None), "max_tries": runner.max_tries + stuck}
    return found | {"stuck_tries": stuck} if stuck else found


def job_entry(
    record: JobRecord,
    view: JobView | None,
    decision: Decision | None,
    since: float | None = None,
    before: JobEntry | None = None,
    held: WaitReason | None = None,
    awaiting: Awaiting | None = None,
) -> JobEntry:
    """One job's entry.

    Args:
        since: Start of its present reason.
        before: Its entry in the previous status, if any.
        held: Why it does not start although the scheduler has chosen it.
        awaiting: What it awaits, if it waits for other jobs.
    """
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
        instance_type=spec.instance_type or None,
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
        reason=(_reason(decision, since) or _waits_for_nodes(record, view) or held) if waiting else None,
        problem=_problem(view),
        expected_duration_seconds=_expected_seconds(spec),
        max_run_seconds=most_from_start(record),
        checkpointed_at=_checkpoint(record, view, before),
        **_steps(record, view),
        labels=spec.labels or None,
        group=spec.limits.group or None,
        after=awaiting.names or None if awaiting is not None and waiting else None,
        **_place(record, view),
        **_host_problem(record, view),
        unverified=True if record.pin is not None and record.pin.user != spec.user_id else None,
        **_inputs(record, view),
    )


def _expected_seconds(spec: JobSpec) -> int | None:
    expected, most = spec.runner.expected_duration_seconds if spec.runner else None, spec.limits.max_run_seconds
    return expected if expected is None or most is None else min(expected, most)


def _problem(view: JobView | None) -> str | None:
    """Why the job's state is unknown, such as a place that does not answer; else why its new spec is refused."""
    if view is None:
        return None
    refused = f"new spec refused: {view.spec_problem}" if view.spec_problem else ""
    return plain_line(view.frozen or refused) or None


def idle_entry(snapshot: Snapshot) -> IdleEntry:
    kept: dict[str, dict[str, tuple[tuple[float, int], ...]]] = {}
    for project, by_type in snapshot.held_recently.items():
        for resource_type, held in by_type.items():
            past = tuple((until, units) for until, units in held if until < math.inf)
            if past:
                kept.setdefault(project, {})[resource_type] = past
    return IdleEntry(kept=kept, restart_seconds=dict(snapshot.restart_seconds))


_Inputs = tuple[JobRecord, JobView | None, Decision | None, float | None, WaitReason | None, Awaiting | None]


class JobEntries:
    """Entries of the jobs, reused while their inputs stay the same."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[_Inputs, JobEntry]] = {}
        self._await_group: set[str] = set()  # jobs that clean up after their groups

    def of(
        self, records: Mapping[str, JobRecord], world: World, plan: Plan, waiting_since: Mapping[str, float]
    ) -> list[JobEntry]:
        decisions = {decision.name: decision for decision in plan.decisions}
        before, self._made = self._made, {}
        for name in sorted(records):  # thousands of jobs, each tick
            record, decision = records[name], decisions.get(name)
            chosen = decision is not None and decision.verdict is Verdict.START
            held = start_held(world, record, decision) if chosen else None
            inputs = record, world.jobs.get(name), decision, waiting_since.get(name), held, world.awaiting.get(name)
            made = before.get(name)
            if (
                made is None
                or made[0][0] is not record
                or made[0][1] is not inputs[1]  # the rest is compared by value
                or made[0][2:] != inputs[2:]
            ):
                published = made[1] if made is not None else None
                entry = job_entry(record, inputs[1], decision, inputs[3], published, held, inputs[5])
                made = inputs, published if published is not None and published == entry else entry
                (self._await_group.add if record.awaits_group else self._await_group.discard)(name)
            self._made[name] = made
        self._count_groups(world)
        return [entry for _, entry in self._made.values()]

    def _count_groups(self, world: World) -> None:
        self._await_group &= self._made.keys()
        groups = Groups(world)
        for name in self._await_group:
            inputs, entry = self._made[name]
            left = groups.left(inputs[0])
            if entry.group_left != left.jobs + left.unread:
                entry = entry.model_copy(update={"group_left": left.jobs + left.unread})
                self._made[name] = inputs, entry


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
    delegated: Sequence[str] = (),
    outside: Outside | None = None,
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
        invalid=(*_invalid(views), *(() if outside is None else _refused(outside))),
        projects={
            name: ProjectEntry(entitlement=dict(usage.entitlement), usage=dict(usage.usage), demand=dict(usage.demand))
            for name, usage in sorted(plan.projects.items())
        },
        pool={
            resource_type: PoolEntry(total=usage.total, used=usage.used, free=usage.free)
            for resource_type, usage in sorted(plan.pool.items())
        },
        delegated=tuple(delegated),
        idle=idle,
        mode=Mode.OPEN.value if outside is None else Mode.INBOX.value,
    )


def _invalid(views: Mapping[str, JobView]) -> Iterable[InvalidEntry]:
    for name, view in sorted(views.items()):
        if view.spec_problem:
            yield InvalidEntry(name=name, problem=plain_line(view.spec_problem), user=view.owner or None)


def _refused(outside: Outside) -> Iterable[InvalidEntry]:
    """Specs that were refused before, in inboxes and beside them: each keeps its explanation."""
    for each in sorted(outside.explained, key=lambda each: (each.name, each.owner)):
        if not each.request:
            yield InvalidEntry(name=each.name, problem=plain_line(each.problem), user=each.owner or None)
