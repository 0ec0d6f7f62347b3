"""The effect of another quota file on the current jobs: the difference of one plan under each policy.

A smaller policy stops a running job only if an owner reclaims capacity that its project borrows, or if the job exceeds
its project's maximum runtime. A job that could not start under the new policy runs on, but cannot start again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quota import Policy
from scheduler.decide.admission import Admission
from scheduler.model import Job, JobStatus, Snapshot, Verdict
from scheduler.scheduling import schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A running job that would be stopped at once, and why; `claimant` is empty if it exceeds the maximum runtime."""

    job: Job
    claimant: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    job: Job
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowing:
    """A project that will use more than its new, smaller entitlement."""

    project: str
    resource_type: str
    held: int
    entitlement_before: int
    entitlement: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overfull:
    """A resource type with more in use than the new total; nothing starts on it until usage fits."""

    resource_type: str
    used: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEffect:
    """The differences, each sorted by name.

    Attributes:
        stopped: Running jobs that only the new policy stops.
        barred_running: Jobs that run on but could not start again.
        barred_waiting: Waiting jobs that could start only under the old policy.
        starting: Names of jobs that start at once only under the new policy.
        borrowing, overfull: Without the stopped jobs.
    """

    stopped: tuple[Stopped, ...] = ()
    barred_running: tuple[Barred, ...] = ()
    barred_waiting: tuple[Barred, ...] = ()
    starting: tuple[str, ...] = ()
    borrowing: tuple[Borrowing, ...] = ()
    overfull: tuple[Overfull, ...] = ()


def effect_of(snapshot: Snapshot, policy: Policy, now: float) -> PolicyEffect:
    """The effect of replacing the snapshot's policy by `policy`; backoffs do not count, they end within minutes."""
    jobs = tuple(replace(job, not_before=None, stockout=False) for job in snapshot.jobs)
    before, after = replace(snapshot, jobs=jobs), replace(snapshot, jobs=jobs, policy=policy)
    old_plan, new_plan = schedule(before, now), schedule(after, now)
    by_name = {job.name: job for job in jobs}
    evicted_anyway = {decision.name for decision in old_plan.acting if decision.verdict is Verdict.EVICT}
    evicted = {
        decision.name: Stopped(
            job=by_name[decision.name], claimant=decision.evicted_for or "", message=decision.message
        )
        for decision in new_plan.acting
        if decision.verdict is Verdict.EVICT and decision.name not in evicted_anyway
    }
    overtime = {stop.job.name: stop for stop in _overtime(jobs, snapshot.policy, policy, now)}
    stopped = tuple(stop for _, stop in sorted({**evicted, **overtime}.items()))
    going = {stop.job.name for stop in stopped}
    staying = [job for job in jobs if job.status is JobStatus.RUNNING and job.name not in going]
    running_on = {job.name for job in staying}
    barred = _barred(before, after, now)
    started = {decision.name for decision in old_plan.acting if decision.verdict is Verdict.START}
    return PolicyEffect(
        stopped=stopped,
        barred_running=tuple(bar for bar in barred if bar.job.name in running_on),
        barred_waiting=tuple(bar for bar in barred if bar.job.status is JobStatus.PENDING),
        starting=tuple(sorted(d.name for d in new_plan.acting if d.verdict is Verdict.START and d.name not in started)),
        borrowing=_borrowing(staying, snapshot.policy, policy),
        overfull=_overfull(staying, policy),
    )


def _overtime(jobs: Iterable[Job], before: Policy | None, after: Policy, now: float) -> Iterable[Stopped]:
    """Running jobs that exceed only the new maximum runtime, counted from the creation of their nodes."""
    for job in jobs:
        most = after.rules(job.project_id).maximum_runtime_seconds
        if job.status is not JobStatus.RUNNING or most is None or not job.started_at:
            continue
        former = before.rules(job.project_id).maximum_runtime_seconds if before is not None else None
        ran = now - job.started_at
        if ran >= most and (former is None or ran < former):
            limit = f"the maximum runtime of project {job.project_id} is {most / 3600:g} h"
            yield Stopped(job=job, claimant="", message=f"exceeds the maximum runtime and will not restart: {limit}")


def _barred(before: Snapshot, after: Snapshot, now: float) -> tuple[Barred, ...]:
    old, new = _admission(before), _admission(after)
    found = []
    for job in sorted(after.jobs, key=lambda job: job.name):
        message = _bar(new, job, now)
        if message and (before.policy is None or not _bar(old, job, now)):
            found.append(Barred(job=job, message=message))
    return tuple(found)


def _admission(snapshot: Snapshot) -> Admission:
    return Admission(snapshot.policy, check_membership=snapshot.check_membership, held=snapshot.held)


def _bar(admission: Admission, job: Job, now: float) -> str:
    if admission.refuses(job):
        return admission.refusal(job, now).message
    policy = admission.policy
    if not admission.exceeds_pool(job):
        return admission.project_ceiling_reason(job, now).message if admission.exceeds_project(job) else ""
    parts = (
        f"{amount} {resource} of {policy.total(resource)}"
        for resource, amount in sorted(job.demand.items())
        if amount > policy.total(resource)
    )
    return f"needs more than the whole pool: {', '.join(parts)}"


def _held(jobs: Iterable[Job]) -> dict[tuple[str, str], int]:
    held: dict[tuple[str, str], int] = {}
    for job in jobs:
        for resource, amount in job.charged.items():
            held[job.project_id, resource] = held.get((job.project_id, resource), 0) + amount
    return held


def _borrowing(staying: Iterable[Job], before: Policy | None, after: Policy) -> tuple[Borrowing, ...]:
    found = []
    for (project, resource), held in sorted(_held(staying).items()):
        entitlement = after.entitlement(project, resource)
        former = before.entitlement(project, resource) if before is not None else 0
        if held > entitlement and entitlement < former:
            found.append(
                Borrowing(
                    project=project,
                    resource_type=resource,
                    held=held,
                    entitlement_before=former,
                    entitlement=entitlement,
                )
            )
    return tuple(found)


def _overfull(staying: Iterable[Job], after: Policy) -> tuple[Overfull, ...]:
    used: dict[str, int] = {}
    for (_, resource), held in _held(staying).items():
        used[resource] = used.get(resource, 0) + held
    return tuple(
        Overfull(resource_type=resource, used=amount, total=after.total(resource))
        for resource, amount in sorted(used.items())
        if amount > after.total(resource)
    )
