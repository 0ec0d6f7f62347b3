"""Shares smaller than the smallest slice, and jobs larger than their share.

A job larger than its share runs only on borrowed units and may be evicted at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bastion.core.model.instance_types import InstanceType, table
from quota import Policy

if TYPE_CHECKING:
    from scheduler import Job

_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallShare:
    """A project with a weight whose share is less than one slice."""

    project: str
    resource_type: str
    entitlement: int
    smallest: InstanceType

    def __str__(self) -> str:
        return (
            f"project {self.project} has a share of {self.entitlement} {self.resource_type} and can only borrow: "
            f"the smallest slice is {self.smallest.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A job that is larger than its project's share. `never`: it cannot run under this file even in an empty pool."""

    job: Job
    resource_type: str
    never: bool
    why: str

    def __str__(self) -> str:
        verdict = "can never run" if self.never else "can only run on borrowed units"
        return f"{self.job.name} of project {self.job.project_id} {verdict}: {self.why}"


def small_shares(policy: Policy) -> Iterator[SmallShare]:
    """By project and type. A project without a weight is meant to borrow and does not count."""
    smallest: dict[str, InstanceType] = {}
    for instance_type in table().values():
        known = smallest.get(instance_type.resource_type)
        if instance_type.served and (known is None or instance_type.amount < known.amount):
            smallest[instance_type.resource_type] = instance_type
    for project in policy.projects:
        for resource_type, weight in sorted(policy.weights.get(project, {}).items()):
            slice_type = smallest.get(resource_type)
            entitlement = policy.entitlement(project, resource_type)
            if weight and slice_type is not None and entitlement < slice_type.amount:
                yield SmallShare(
                    project=project, resource_type=resource_type, entitlement=entitlement, smallest=slice_type
                )


def misfits(policy: Policy, jobs: Sequence[Job]) -> list[Misfit]:
    """The waiting or running jobs that exceed their share of a type: impossible ones first, then by name."""
    found = (_misfit(policy, job) for job in jobs)
    return sorted((misfit for misfit in found if misfit), key=lambda misfit: (not misfit.never, misfit.job.name))


def _misfit(policy: Policy, job: Job) -> Misfit | None:
    demand: Mapping[str, int] = job.demand
    worst: Misfit | None = None
    for resource_type, need in sorted(demand.items()):
        entitled = policy.entitlement(job.project_id, resource_type)
        if need <= entitled:
            continue
        ceiling, total = policy.ceiling(job.project_id, resource_type), policy.total(resource_type)
        if need > total:
            why = f"needs {need} {resource_type}; the pool has {total}"
        elif need > ceiling:
            why = f"needs {need} {resource_type}; the borrowing and lending limits allow at most {ceiling}"
        elif job.project_id not in policy.projects:
            why = f"needs {need} {resource_type}; its project is not in this file"
        else:
            why = f"needs {need} {resource_type}; its project's share is {entitled}"
        if worst is None or (need > ceiling and not worst.never):
            worst = Misfit(job=job, resource_type=resource_type, never=need > ceiling, why=why)
    return worst


def lines(found: Sequence[SmallShare | Misfit], title: str) -> Iterator[str]:
    if found:
        yield ""
        yield f"{title}: {len(found)}"
        yield from (f"  {case}" for case in found[:_SHOWN])
        if len(found) > _SHOWN:
            yield f"  and {len(found) - _SHOWN} more (use --output=json to see all)"
