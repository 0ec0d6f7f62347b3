"""The scheduler's jobs, read from the published status, for what-if questions outside the daemon.

The status lacks jobs with an unreadable state (an alarm names them), backoffs, and the claimants of stopping jobs.
Claimants do not matter for evictions: units being freed count as free later in any case.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bastion.core import limits
from bastion.core.errors import InvalidDocument
from bastion.core.model.job_record import Cause
from bastion.core.model.lifecycle import Status
from bastion.core.status.document import JobEntry, StatusDocument
from quota import Policy
from scheduler import Job, JobStatus, ReasonCode, Snapshot


def published_jobs(status: StatusDocument) -> tuple[Job, ...]:
    """The jobs that hold or want capacity; evicted ones are marked as waiting again after they stop.

    Those that Kueue decides on are delegated.

    Raises:
        InvalidDocument: A name appears twice.
    """
    kueues = frozenset(status.delegated)
    jobs = [job for entry in status.jobs if (job := _job(entry, kueues)) is not None]
    if len({job.name for job in jobs}) != len(jobs):
        raise InvalidDocument("the published status has a job twice")
    return tuple(jobs)


def published_snapshot(status: StatusDocument, policy: Policy | None) -> Snapshot:
    """The scheduler's input at the instant of the status, under that policy.

    Raises:
        InvalidDocument: As `published_jobs`.
    """
    return Snapshot(
        policy=policy,
        jobs=published_jobs(status),
        bastion_slots=limits.BASTION_HOST_JOBS_MAX,
        held_recently=status.idle.kept,
        restart_seconds=status.idle.restart_seconds,
        user_usage=status.usage.projects,
    )


def without_delegated(snapshot: Snapshot) -> Snapshot:
    """The snapshot for a forecast: when delegated jobs start and end, Kueue decides."""
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if not job.delegated))


def awaits_kueue(status: StatusDocument, entry: JobEntry) -> bool:
    """Whether the job waits, and Kueue decides how long."""
    if entry.attempt is None:
        return entry.status is Status.PENDING and not entry.resources.keys().isdisjoint(status.delegated)
    return entry.queue is not None and entry.waiting is not None and bool(entry.waiting.queue)


def _job(entry: JobEntry, kueues: Collection[str]) -> Job | None:
    """None if it holds nothing and does not run."""
    reason = entry.reason
    if entry.attempt is None:
        if entry.status is not Status.PENDING:
            return None
        job_status = JobStatus.PENDING
    elif entry.stopping is not None or entry.status is Status.CANCELLING:
        job_status = JobStatus.STOPPING
    else:
        job_status = JobStatus.RUNNING
    delegated = entry.queue is not None if entry.attempt is not None else not entry.resources.keys().isdisjoint(kueues)
    evicted = job_status is JobStatus.STOPPING and str(entry.stopping).startswith(f"{Cause.EVICTED.value}:")
    return Job(
        name=entry.name,
        project_id=entry.project_id,
        user_id=entry.user_id,
        priority=entry.priority,
        queued_at=entry.queued_at,
        demand={} if delegated else entry.resources,
        status=job_status,
        tier=entry.tier,
        # A spec changes only while its job waits, so a job's usage equals its demand.
        charged=entry.resources if entry.attempt is not None and not delegated else {},
        # In a queue of Kueue it has not started.
        started_at=entry.running_since if delegated else entry.started_at if entry.attempt is not None else None,
        on_bastion=entry.instance_type is None,
        instance_type=entry.instance_type or "",
        waiting_since=reason.since if reason else None,
        checkpointed_at=entry.checkpointed_at,
        promised=reason is not None and reason.code == ReasonCode.WAITING_FOR_PREEMPTED.value,
        delegated=delegated,
        after=(entry.after or ()) if job_status is JobStatus.PENDING else (),
        max_run_seconds=entry.max_run_seconds,
        evicted_for="" if evicted else None,  # the status does not say for whom
    )
