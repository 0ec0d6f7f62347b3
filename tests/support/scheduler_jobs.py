"""Jobs, quotas and passes for the tests of the scheduler: one type, v4, and an hour's run behind those that run."""

from __future__ import annotations

from typing import Any

from quota import Policy, ProjectRules
from scheduler import Decision, Job, JobStatus, Plan, Snapshot, Verdict, schedule

NOW = 10_000_000.0
HOUR = 3600.0


def policy(total: int = 64, rules: ProjectRules | None = None, **weights: float) -> Policy:
    """Projects by weight, a and b with half of the pool each where none are given; `rules` are everybody's."""
    shares = weights or {"a": 1.0, "b": 1.0}
    return Policy(
        tiers=({"v4": total},),
        weights={project: {"v4": weight} for project, weight in shares.items()},
        members={},
        default_rules=rules or ProjectRules(),
    )


def pending(name: str, project: str, units: int, **fields: Any) -> Job:
    values: dict[str, Any] = {"queued_at": NOW - 60.0, "demand": {"v4": units}, "user_id": "u", **fields}
    return Job(name=name, project_id=project, **values)


def running(name: str, project: str, units: int, *, age: float = HOUR, **fields: Any) -> Job:
    values = {
        "status": JobStatus.RUNNING,
        "tier": 0,
        "charged": {"v4": units},
        "started_at": NOW - age,
        "queued_at": NOW - age,
        **fields,
    }
    return pending(name, project, units, **values)


def pass_over(quota: Policy, *jobs: Job, **fields: Any) -> Plan:
    return schedule(Snapshot(policy=quota, jobs=jobs, check_membership=False, **fields), NOW)


def evicted(plan: Plan) -> set[str]:
    return {decision.name for decision in plan.decisions if decision.verdict is Verdict.EVICT}


def started(plan: Plan) -> set[str]:
    return {decision.name for decision in plan.decisions if decision.verdict is Verdict.START}


def decision(plan: Plan, name: str) -> Decision:
    (found,) = [decision for decision in plan.decisions if decision.name == name]
    return found
