"""The scheduler's jobs, read from the published status, for what-if questions outside the daemon.

The status lacks jobs with an unreadable state (an alarm names them), backoffs, and the claimants of stopping jobs.
The latter do not matter for evictions: units being freed count as free later in any case.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.errors import InvalidDocument
from bastion.core.model.job_record import Cause
from bastion.core.model.lifecycle import Status
from bastion.core.status.document import JobEntry, StatusDocument
from quota import Policy
from scheduler import Job, JobStatus, ReasonCode, Snapshot


def published_jobs(status: StatusDocument) -> tuple[Job, ...]:
    """The jobs that hold or want capacity; evicted ones are marked as waiting again after they stop.

    Raises:
        InvalidDocument: A name appears twice.
    """
    jobs = [job for entry in status.jobs if (job := _job(entry)) is not None]
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


def _job(entry: JobEntry) -> Job | None:
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
    evicted = job_status is JobStatus.STOPPING and str(entry.stopping).startswith(f"{Cause.EVICTED.value}:")
    return Job(
        name=entry.name,
        project_id=entry.project_id,
        user_id=entry.user_id,
        priority=entry.priority,
        queued_at=entry.queued_at,
        demand=entry.resources,
        status=job_status,
        tier=entry.tier,
        # A spec changes only while its job waits, so a job's usage equals its demand.
        charged=entry.resources if entry.attempt is not None else {},
        started_at=entry.started_at if entry.attempt is not None else None,
        on_bastion=entry.instance_type is None,
        waiting_since=reason.since if reason else None,
        checkpointed_at=entry.checkpointed_at,
        promised=reason is not None and reason.code == ReasonCode.WAITING_FOR_PREEMPTED.value,
        evicted_for="" if evicted else None,  # the status does not say for whom
    )
