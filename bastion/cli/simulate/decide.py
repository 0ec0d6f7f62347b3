"""`bastion simulate decide`: one decision of the production scheduler, on jobs from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.cli.quota import file as quota_file
from bastion.cli.simulate.jobs import parse_instant, parse_jobs
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import QuotaFileError, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler import Decision, Job, Plan

_JOBS_MAX_BYTES = 256 * 1024 * 1024


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("quota", None, "The quota file; - means stdin.", flag_values=values)
    flags.DEFINE_string("jobs", None, "A JSON list of jobs; - means stdin.", flag_values=values)
    flags.DEFINE_string(
        "now",
        None,
        "Time of the decision: seconds since 1970, or like 2026-01-02T03:04:05Z. Default: the latest time in the jobs.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    from scheduler import Snapshot, schedule

    if not call.flags.quota or not call.flags.jobs:
        raise Refused("bastion simulate decide requires both files: --quota=FILE --jobs=FILE.json")
    if call.flags.quota == call.flags.jobs == "-":
        raise Refused("only one of the two files can be - (stdin)")
    try:
        policy = load(quota_file.read(call.flags.quota))
    except QuotaFileError as error:
        quota_file.tell_problems(call.flags.quota, error, json=call.json)
        return EXIT_REFUSED
    given = parse_jobs(_read_jobs(call.flags.jobs))
    if given.unknown:
        say(f"bastion: note: ignoring unknown fields of jobs: {plain(', '.join(given.unknown))}")
    snapshot = Snapshot(policy=policy, jobs=given.jobs, check_membership=False)
    plan = schedule(snapshot, _now(call.flags.now, given.jobs))
    if call.json:
        emit_json(document(plan, given.least))
    else:
        _show(plan)
    return 0


def _read_jobs(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_JOBS_MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_JOBS_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read the jobs {plain(path)}: {error.strerror}") from error
    if len(data) > _JOBS_MAX_BYTES:
        raise Refused(f"the jobs {plain(path)} are longer than {_JOBS_MAX_BYTES} bytes; use fewer jobs")
    return data


def _now(given: str | None, jobs: tuple[Job, ...]) -> float:
    if given is None:
        return max((max(job.queued_at, job.started_at or 0.0) for job in jobs), default=0.0)
    now = parse_instant(given)
    if now is None:
        raise Refused(f"--now={plain(given)} is not a valid time; use seconds since 1970, or like 2026-01-02T03:04:05Z")
    return now


def document(plan: Plan, least: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The plan for `--output=json`. `least`: the minimum replicas of each elastic job, by scaling."""
    return {
        "decisions": [
            {
                "name": decision.name,
                "run": decision.verdict.value in ("start", "keep", "resize"),
                "tier": decision.tier,
                "reason": decision.reason.code.value if decision.reason is not None else None,
                "message": decision.reason.message if decision.reason is not None else decision.message,
                "position": decision.position,
                "verdict": decision.verdict.value,
                "evicted_for": decision.evicted_for,
                **_replicas(decision, least),
            }
            for decision in plan.decisions
        ],
        "projects": {
            project: {"entitlement": dict(one.entitlement), "usage": dict(one.usage), "demand": dict(one.demand)}
            for project, one in plan.projects.items()
        },
        "pool": {
            resource_type: {"total": one.total, "used": one.used, "free": one.free}
            for resource_type, one in plan.pool.items()
        },
    }


def _replicas(decision: Decision, least: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """The replicas of an elastic job that starts or runs on, by scaling, and how many of them are lent."""
    if not decision.extra:
        return {}
    extra = list(decision.extra)
    replicas = [needed + lent for needed, lent in zip(least[decision.name], extra, strict=True)]
    return {"replicas": replicas, "extra_replicas": extra}


def _show(plan: Plan) -> None:
    rows = []
    for decision in plan.decisions:
        why = decision.message
        if decision.reason is not None:
            why = f"{decision.reason.code.value}: {decision.reason.message}"
        if decision.evicted_for and not why:
            why = f"evicted for {decision.evicted_for}"
        if decision.extra:
            counts = " and ".join(map(str, decision.extra))
            why = f"{why}; extra replicas: {counts}" if why else f"extra replicas: {counts}"
        place = "-" if decision.position is None else str(decision.position)
        tier = "-" if decision.tier is None else str(decision.tier)
        rows.append((decision.name, decision.verdict.value, tier, place, why))
    print(table(("JOB", "VERDICT", "TIER", "POSITION", "WHY"), rows))
    usages = [
        (
            project,
            resource_type,
            str(one.usage.get(resource_type, 0)),
            str(one.entitlement.get(resource_type, 0)),
            str(one.demand.get(resource_type, 0)),
        )
        for project, one in plan.projects.items()
        for resource_type in plan.pool
    ]
    print(table(("PROJECT", "TYPE", "USAGE", "ENTITLEMENT", "DEMAND"), usages), end="")


DECIDE = Command(
    summary="Shows one decision of the scheduler on jobs from a file; uses no bastion.",
    usage="--quota=FILE --jobs=FILE.json [--output=json]",
    details="""The jobs are a JSON list of objects with name, project_id, user_id, creation_time (seconds since 1970 or
        RFC 3339) and resources (units by type). Optional: priority (1 to 5; 1 goes first), status (PENDING or ACTIVE),
        and for an active job tier and started_at (default: creation_time). An elastic job has scaling_specs, a list of
        objects with min_replicas, max_replicas and resources_per_replica; its minimum replaces resources. An active
        elastic job may have replicas, the present number for each scaling, including min_replicas (default: those).

        Leave out jobs of resource types that Kueue decides on: the command reads no settings.

        There is one decision. Membership and the slots of a bastion's own host do not count: there is only the pool,
        and a job whose resources are {} starts. --output=json prints the decisions in scheduling order, each with
        name, run (whether the job starts or keeps running), tier, reason, message, position in the pool's queue,
        verdict and evicted_for. An elastic job that starts or runs also has replicas, its number for each scaling, and
        extra_replicas, how many of these are lent beyond min_replicas. It also prints the projects' entitlement, usage
        and demand after the decision. A job for which others are evicted waits (WaitingForPreempted) until they have
        ended.""",
    examples=("bastion simulate decide --quota=quotas.config --jobs=jobs.json --output=json",),
    define=_define,
    takes_target=False,
    takes_output=True,
    run=_run,
)
