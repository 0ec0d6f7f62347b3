"""The plan's totals per project and resource type, after the plan is applied."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from quota import Policy
from scheduler.decide.ledger import Ledger
from scheduler.model import Job, JobStatus, PoolUsage, ProjectUsage


def pool_usages(policy: Policy, taken: Mapping[str, int]) -> dict[str, PoolUsage]:
    usages = {}
    for resource in policy.resource_types:
        total, used = policy.total(resource), taken.get(resource, 0)
        usages[resource] = PoolUsage(total=total, used=used, free=max(0, total - used))
    return usages


def project_usages(
    policy: Policy, jobs: Iterable[Job], ledger: Ledger, idle: Collection[str]
) -> dict[str, ProjectUsage]:
    """Usage of every project of the policy or of a job, sorted; `idle` jobs do not compete, and are no demand."""
    usage: dict[str, dict[str, int]] = {project: {} for project in policy.projects}
    demand: dict[str, dict[str, int]] = {project: {} for project in policy.projects}
    for job in jobs:
        held = usage.setdefault(job.project_id, {})
        wanted = demand.setdefault(job.project_id, {})
        if job.status is JobStatus.PENDING:
            if job.name in ledger.starts:
                _add(held, job.demand)
            if job.name not in idle:
                _add(wanted, job.demand)
        else:
            _add(held, job.charged)
            if job.status is JobStatus.RUNNING:
                _add(wanted, job.charged)
            elif job.evicted_for is not None:
                _add(wanted, job.demand)  # it comes back
        for scaling, extra in zip(job.scaling, ledger.extra.get(job.name, ()), strict=False):
            more = max(0, extra - (scaling.extra if job.status is JobStatus.RUNNING else 0))
            grown = {resource: more * amount for resource, amount in scaling.per_replica.items() if more}
            _add(held, grown)
            _add(wanted, grown)
    return {
        project: ProjectUsage(
            entitlement={resource: policy.entitlement(project, resource) for resource in policy.resource_types},
            usage=dict(sorted(usage[project].items())),
            demand=dict(sorted(demand[project].items())),
        )
        for project in sorted(usage)
    }


def _add(ledger: dict[str, int], amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        ledger[resource] = ledger.get(resource, 0) + amount
