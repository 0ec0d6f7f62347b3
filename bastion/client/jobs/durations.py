"""How long a bastion's live and completed jobs take, by its bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from bastion.client.jobs.client import Client
from bastion.client.jobs.results import Result
from bastion.core.errors import Refused
from bastion.core.model import job_spec
from bastion.core.model.job_record import Cause
from scheduler import Job, JobStatus
from scheduler.decide.capacity import amounts_of
from scheduler.simulation.durations import Durations, JobProfile
from scheduler.simulation.whatif import PastJob

# An attempt with such an end was complete; others would have gone on.
_BY_ITSELF = {Cause.SUCCEEDED.value, Cause.FAILED.value, Cause.CANCELLED.value}


def declared_durations(client: Client) -> dict[str, float]:
    """Expected durations of live jobs in seconds, by name, where the owner declared one."""
    declared = {name: entry.expected_duration_seconds for name, entry in client.entries(again=False).items()}
    return {name: float(seconds) for name, seconds in declared.items() if seconds}


def past_durations(results: Iterable[Result]) -> Iterator[tuple[JobProfile, float]]:
    """How long ended jobs held their capacity in the attempt that was their last, if it ended by itself."""
    for result in results:
        past = _past_job(result, result.name)
        if past is not None and result.attempts[-1].cause in _BY_ITSELF:
            yield JobProfile.of(past.job), past.seconds


def past_jobs(results: Iterable[Result], live: Iterable[Job], durations: Durations, now: float) -> list[PastJob]:
    """All jobs that have used or want capacity, the first to end first.

    A completed job takes as long as its last attempt, as if earlier ones had to be repeated. A running job takes as
    long as similar ones, or, if unknown, twice as long as so far. A waiting job of unknown duration is left out.
    """
    waiting = list(live)
    taken = {job.name for job in waiting}
    found: list[PastJob] = []
    names: dict[str, str] = {}
    for result in results:
        # Namesakes are different jobs.
        name = result.name if result.name not in taken else f"{result.name}.{result.uid or len(found)}"
        past = _past_job(result, name)
        if past is not None and name not in taken:
            taken.add(name)
            names[result.uid] = name
            found.append(past)
    # Until here, what a job awaited is told by uid.
    found = [
        replace(past, job=replace(past.job, after=tuple(names[uid] for uid in past.job.after if uid in names)))
        if past.job.after
        else past
        for past in found
    ]
    for job in waiting:
        past = _live_job(job, durations, now)
        if past is not None:
            found.append(past)
    return found


def _past_job(result: Result, name: str) -> PastJob | None:
    """None if it never used capacity, or is a foreign document."""
    last = result.attempts[-1] if result.attempts else None
    if last is None or last.started_at is None or last.ended_at is None or last.ended_at <= last.started_at:
        return None
    try:
        spec = job_spec.from_document(result.document, name=result.name)
    except Refused:
        return None
    began = last.started_at
    queued = began if result.queued_at is None else result.queued_at
    job = Job(
        name=name,
        project_id=spec.project_id,
        user_id=spec.user_id,
        priority=spec.priority,
        queued_at=min(queued, began),
        demand=dict(amounts_of(spec.resources)),
        on_bastion=spec.runner is None,
        instance_type=spec.instance_type,
        cleanup=spec.has_cleanup,
        root=spec.as_root,
        after=tuple(each.uid for each in spec.limits.after),
    )
    return PastJob(job=job, seconds=last.ended_at - began, began_at=began)


def _live_job(job: Job, durations: Durations, now: float) -> PastJob | None:
    fresh = Job(
        name=job.name,
        project_id=job.project_id,
        user_id=job.user_id,
        priority=job.priority,
        queued_at=job.queued_at,
        demand=job.demand,
        on_bastion=job.on_bastion,
        instance_type=job.instance_type,
        cleanup=job.cleanup,
        after=job.after,
        max_run_seconds=job.max_run_seconds,
    )
    began = job.started_at if job.status is not JobStatus.PENDING else None
    ran = max(0.0, now - began) if began is not None else 0.0
    left = durations.remaining(job, ran)
    if job.status is JobStatus.STOPPING:
        seconds = ran
    elif left is not None:
        seconds = left.totals[len(left.totals) // 2]
    elif began is not None:
        seconds = 2 * ran
    else:
        return None
    return PastJob(job=fresh, seconds=seconds, began_at=began)
