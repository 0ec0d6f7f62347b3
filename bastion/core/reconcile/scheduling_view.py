"""The scheduler's snapshot, from the records: which jobs wait or run, and what each job uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

from bastion.core import limits
from bastion.core.model.awaiting import Awaiting
from bastion.core.model.bastion_host_jobs import AS_DAEMON, BastionHostJobs, why_held
from bastion.core.model.instance_types import served_types
from bastion.core.model.job_record import Cause, JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.provisioning import BUILT_IN, Provisioning, why_not_placed
from bastion.core.model.world import JobView
from bastion.core.reconcile.checkpoints import saved_until
from bastion.core.reconcile.job_requests import hold_of, hold_text
from bastion.core.reconcile.run_time import most_from_start
from bastion.core.reconcile.user_requests import cancel_requested
from quota import Policy
from scheduler import Job, JobStatus, Snapshot


class SchedulingView:
    """The snapshots of one daemon. An unchanged job stays the same object, so that the scheduler can skip it."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[JobView, float | None, bool, str, bool, tuple[str, ...], Job | None]] = {}
        # Of the last snapshot.
        self._provisioning: Provisioning | None = None
        self._host_jobs = AS_DAEMON

    def snapshot(
        self,
        views: Mapping[str, JobView],
        policy: Policy | None,
        *,
        waiting_since: Mapping[str, float] | None = None,
        promised: frozenset[str] = frozenset(),
        provisioning: Provisioning | None = BUILT_IN,
        awaiting: Mapping[str, Awaiting] | None = None,
        host_jobs: BastionHostJobs = AS_DAEMON,
    ) -> Snapshot:
        """Return the input of `scheduler.schedule`.

        Args:
            policy: The last good quota file; None if there never was one.
            waiting_since: Start of each waiting job's present reason.
            promised: Jobs with capacity ordered in an earlier pass that have not started since.
            provisioning: The operator's settings; a job without a place in them is held.
            awaiting: What waiting jobs await, by name.
            host_jobs: Whether jobs without a slice may start.
        """
        since = waiting_since or {}
        same_settings = provisioning is self._provisioning and host_jobs == self._host_jobs
        self._provisioning, self._host_jobs = provisioning, host_jobs
        placed = provisioning.resource_types if provisioning is not None else ()
        homeless = frozenset(served_types()).difference(placed)
        if provisioning is not None:
            homeless |= {each for each in placed if provisioning.needs_image(each)}
        delegated = provisioning.delegated if provisioning is not None else ()
        before, self._made = self._made, {}
        jobs = []
        for name in sorted(views):
            view, made = views[name], before.get(name)
            if same_settings and made is not None and made[0] is view:  # most of thousands, each tick
                hold, elsewhere = made[3], made[4]
            else:
                runner = view.record.job.runner if view.record is not None else None
                hold = why_held(host_jobs) if view.record is not None and runner is None else ""
                if runner is not None and (
                    runner.has_image or runner.has_pod_secrets or runner.instance_type.resource_type in homeless
                ):
                    hold = why_not_placed(provisioning, runner)
                elsewhere = bool(delegated) and runner is not None and runner.instance_type.resource_type in delegated
            awaited = awaiting[name].names if awaiting and name in awaiting else ()
            given = view, since.get(name), name in promised, hold, elsewhere, awaited
            if made is None or made[0] is not view or made[1:6] != given[1:]:
                job = _job_of(*given)
                # Most changes of a view do not concern the scheduler.
                made = (*given, made[6] if made is not None and made[6] == job else job)
            self._made[name] = made
            if made[6] is not None:
                jobs.append(made[6])
        return Snapshot(
            policy=policy,
            jobs=tuple(jobs),
            bastion_slots=limits.BASTION_HOST_JOBS_MAX,
            submitted_most=limits.SUBMITTED_JOBS_MAX,
        )


def _job_of(
    view: JobView, since: float | None, promised: bool, hold: str, delegated: bool, after: tuple[str, ...]
) -> Job | None:
    job = _job_without_after(view, since, promised, hold, delegated)
    return replace(job, after=after) if after and job is not None and job.status is JobStatus.PENDING else job


def _job_without_after(view: JobView, since: float | None, promised: bool, hold: str, delegated: bool) -> Job | None:
    if view.ghost or (view.late and view.attempt.gang is None and not _claimed(view)):
        return None  # it has ended, or never counted
    if view.unread and view.record is not None:
        return _unread(view, view.record, _job(view, view.record, since, promised, hold, delegated), delegated)
    record = view.doubt or view.record
    return _unreadable(view, delegated) if record is None else _job(view, record, since, promised, hold, delegated)


def _claimed(view: JobView) -> bool:
    claim = view.attempt.claim
    return claim is not None and not claim.closed


def _unread(view: JobView, record: JobRecord, known: Job | None, delegated: bool) -> Job:
    """Return a job whose newest state cannot be read: all it may use counts. `known` is the job as last read."""
    known = known if known is not None else _blank(record.name, record.job, record.queued_at, delegated=delegated)
    units = {} if known.delegated else dict(record.job.resources)
    for others in (known.charged, view.spec.resources if view.spec is not None and not known.delegated else {}):
        units |= {resource_type: max(count, units.get(resource_type, 0)) for resource_type, count in others.items()}
    running = known.status is not JobStatus.PENDING
    return replace(
        known,
        status=known.status if running else JobStatus.RUNNING,
        charged=units,
        started_at=known.started_at if running else 0.0,
        hold="",
    )


def _blank(name: str, spec: JobSpec, queued_at: float, *, delegated: bool) -> Job:
    units = {} if delegated else spec.resources
    return Job(
        name=name,
        project_id=spec.project_id,
        user_id=spec.user_id,
        priority=spec.priority,
        queued_at=queued_at,
        demand=units,
        status=JobStatus.RUNNING,
        charged=units,
        started_at=0.0,  # it cannot be stopped now: evict it last
        on_bastion=spec.runner is None,
        instance_type=spec.instance_type,
        cleanup=spec.has_cleanup,
        root=spec.as_root,
        delegated=delegated,
    )


def _unreadable(view: JobView, delegated: bool) -> Job | None:
    """Return a job without a readable state: its spec's demand counts as in use if its nodes may exist."""
    if not (view.spec and view.spec_meta and (view.orphan_gangs or (view.frozen and view.unread))):
        return None
    delegated = _in_kueue(view) if view.orphan_gangs else delegated
    return _blank(view.name, view.spec, view.spec_meta.updated, delegated=delegated)


def _in_kueue(view: JobView) -> bool:
    """Whether all gangs without a run are Kueue's to count."""
    return all(orphan.status.kueue is not None for orphan in view.orphan_gangs)


def _job(
    view: JobView, record: JobRecord, since: float | None, promised: bool, hold: str, delegated: bool
) -> Job | None:
    """Return the job as the scheduler sees it. `delegated`: by the settings; a place in a queue says it of an attempt.

    None if it holds nothing and does not run.
    """
    spec = record.job
    attempt = record.attempt
    if attempt is not None:
        delegated = attempt.place is not None and bool(attempt.place.queue)
    if attempt is None and view.orphan_gangs:
        # It has nodes but no attempt: its state was deleted or replaced.
        left = _blank(record.name, spec, record.queued_at, delegated=_in_kueue(view))
        return replace(left, status=JobStatus.STOPPING)
    if attempt is None and (
        record.status is not Status.PENDING or cancel_requested(view) or view.spec_gone or view.frozen
    ):
        return None
    held = hold_of(view, record) if attempt is None else None
    ending = attempt.ending if attempt else None
    if attempt is None:
        status = JobStatus.PENDING
    elif ending is not None or record.status is Status.CANCELLING or cancel_requested(view) or view.spec_gone:
        status = JobStatus.STOPPING
    else:
        status = JobStatus.RUNNING
    return Job(
        name=record.name,
        project_id=spec.project_id,
        user_id=spec.user_id,
        priority=spec.priority,
        queued_at=record.queued_at,
        demand={} if delegated else spec.resources,
        status=status,
        tier=attempt.tier if attempt else None,
        charged=attempt.charged if attempt else {},
        started_at=attempt.started_at if attempt else None,
        not_before=record.not_before,
        stockout=record.stockout,
        evicted_for=ending.evicted_for if ending else None,
        on_bastion=spec.runner is None,
        instance_type=spec.instance_type,
        cleanup=spec.has_cleanup,
        root=spec.as_root,
        waiting_since=record.attempts[-1].ended_at if since is None and record.attempts else since,
        promised=promised,
        hold=(hold_text(held) if held is not None else hold) if status is JobStatus.PENDING else "",
        released_by=f"{held.by}, the job's user or an admin releases it: bastion release {record.name}" if held else "",
        delegated=delegated,
        checkpointed_at=saved_until(attempt, view.attempt) if attempt and status is JobStatus.RUNNING else None,
        max_run_seconds=most_from_start(record),
        **past_evictions(record),
    )


class _Evictions(TypedDict):
    evictions: int
    futile_evictions: int
    evicted_at: float | None
    evicted_seconds: float


_NEVER_EVICTED = _Evictions(evictions=0, futile_evictions=0, evicted_at=None, evicted_seconds=0.0)


def past_evictions(record: JobRecord) -> _Evictions:
    if not record.attempts:  # nearly every job
        return _NEVER_EVICTED
    evicted = [past for past in record.attempts if past.cause is Cause.EVICTED]
    in_a_row = 0
    for past in reversed(record.attempts):
        if past.cause is not Cause.EVICTED or past.checkpointed_at is not None:
            break
        in_a_row += 1
    return _Evictions(
        evictions=len(evicted),
        futile_evictions=in_a_row,
        evicted_at=evicted[-1].ended_at if evicted else None,
        evicted_seconds=sum(max(0.0, past.ended_at - past.started_at) for past in evicted),
    )
