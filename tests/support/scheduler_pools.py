"""Passes over pools of several types and tiers, whose projects have the member u, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quota import Policy
from scheduler import Job, JobStatus, Plan, ReasonCode, Snapshot, schedule
from tests.support.scheduler_jobs import decision

NOW = 1_000_000.0


def policy(total: int | tuple[int, ...] = 64, *, kinds: tuple[str, ...] = ("v4",), **weights: float) -> Policy:
    """One tier or several, so large in each of `kinds`; projects by weight, a and b alike where none are given."""
    tiers = (total,) if isinstance(total, int) else total
    shares = weights or {"a": 1.0, "b": 1.0}
    return Policy(
        tiers=tuple(dict.fromkeys(kinds, tier) for tier in tiers),
        weights={project: dict.fromkeys(kinds, weight) for project, weight in shares.items()},
        members=dict.fromkeys(shares, ("u",)),
    )


def pending(name: str, project: str, amount: int | Mapping[str, int], **fields: Any) -> Job:
    demand = {"v4": amount} if isinstance(amount, int) else amount
    fields = {"user_id": "u", "queued_at": 100.0, **fields}
    return Job(name=name, project_id=project, demand=demand, **fields)


def running(name: str, project: str, amount: int | Mapping[str, int], **fields: Any) -> Job:
    job = pending(name, project, amount)
    fields = {"status": JobStatus.RUNNING, "tier": 0, "charged": job.demand, "started_at": NOW - 3600, **fields}
    return replace(job, **fields)


def stopping(name: str, project: str, amount: int, **fields: Any) -> Job:
    return running(name, project, amount, status=JobStatus.STOPPING, **fields)


def pass_over(quota: Policy | None, *jobs: Job, **fields: Any) -> Plan:
    return schedule(Snapshot(policy=quota, jobs=jobs, **fields), NOW)


def verdicts(plan: Plan) -> dict[str, str]:
    return {decision.name: decision.verdict.value for decision in plan.decisions}


def code(plan: Plan, name: str) -> ReasonCode:
    reason = decision(plan, name).reason
    assert reason is not None
    return reason.code
