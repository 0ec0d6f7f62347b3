"""A trace of jobs, and the window of it that is replayed."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from quota import Policy

DAY_SECONDS = 86_400.0
# Ten years: a replay goes on until every job has ended.
_DURATION_MAX = 10 * 365 * 86_400.0
_COLUMNS = ("job_id", "project", "submit_s", "duration_s", "chips")


class TraceError(ValueError):
    """The trace is invalid; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job: `submit` in seconds since the beginning of the trace or window, `duration` in seconds of work."""

    name: str
    project: str
    submit: float
    duration: float
    chips: int
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The part of a trace to replay.

    Attributes:
        jobs: In order of submission.
        seconds: Its length; metrics that are integrals stop there.
        pool: Chips.
        entitlements: Chips by project, floor(share x pool).
        shares: Fraction of the pool by project, at most 1 in total.
        resource_type: Of the chips.
    """

    jobs: Sequence[TraceJob]
    seconds: float
    pool: int
    entitlements: Mapping[str, int]
    shares: Mapping[str, float]
    resource_type: str = "chips"


def read(lines: Iterable[str]) -> list[TraceJob]:
    """Read CSV with the columns `job_id, project, user, submit_s, duration_s, chips` in any order.

    Raises:
        TraceError: a column or value is missing or invalid, or two jobs have the same id.
    """
    rows = csv.DictReader(lines)
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise TraceError(f"the trace has no column {', '.join(missing)}; it needs {', '.join(_COLUMNS)}")
    jobs = []
    names: set[str] = set()
    for row in rows:
        if any(row[name] is None for name in _COLUMNS):
            raise TraceError(f"line {rows.line_num} of the trace has too few columns")
        try:
            job = TraceJob(
                name=row["job_id"],
                project=row["project"],
                submit=float(row["submit_s"]),
                duration=float(row["duration_s"]),
                chips=int(row["chips"]),
                user=row.get("user") or "",
            )
        except ValueError as error:
            raise TraceError(
                f"line {rows.line_num} of the trace: submit_s and duration_s must be numbers, and chips a whole number"
            ) from error
        if not (0 <= job.submit < float("inf") and 0 < job.duration <= _DURATION_MAX and job.chips > 0 and job.name):
            raise TraceError(
                f"line {rows.line_num} of the trace: a job needs a job_id, submit_s of at least 0, chips above 0, and "
                "duration_s above 0 and at most ten years"
            )
        if job.name in names:
            raise TraceError(f"line {rows.line_num} of the trace: duplicate job_id {job.name!r}")
        names.add(job.name)
        jobs.append(job)
    return jobs


def cut(jobs: Iterable[TraceJob], shares: Mapping[str, float], *, start_day: float, days: float, load: float) -> Window:
    """The jobs submitted in the window, and the rest of those that would still run at its beginning.

    Leaves out projects without a share. The demanded chip-seconds are `load` times those of the pool.

    Raises:
        TraceError: the window is empty.
    """
    begin, length = start_day * DAY_SECONDS, days * DAY_SECONDS
    kept = []
    for job in sorted(jobs, key=lambda job: job.submit):
        if job.project not in shares or job.submit >= begin + length or job.submit + job.duration <= begin:
            continue
        left = min(job.duration, job.submit + job.duration - begin)
        kept.append(replace(job, submit=max(0.0, job.submit - begin), duration=left))
    if not kept:
        raise TraceError(
            f"the trace has no job of a project with a share in days {start_day:g} to {start_day + days:g}; choose "
            "other days, or a quota file with its projects"
        )
    demanded = sum(job.chips * min(job.duration, length - job.submit) for job in kept)
    pool = max(1, round(demanded / (load * length)))
    return Window(
        jobs=kept,
        seconds=length,
        pool=pool,
        entitlements={project: int(share * pool + 1e-9) for project, share in shares.items()},
        shares=dict(shares),
    )


def fitting(window: Window) -> Window:
    """The window without jobs larger than the pool; raises TraceError if nothing is left."""
    jobs = [job for job in window.jobs if job.chips <= window.pool]
    if not jobs:
        raise TraceError(
            f"every job of these days needs more than the pool's {window.pool} chips; choose a larger pool"
        )
    return replace(window, jobs=jobs)


def jittered(jobs: Iterable[TraceJob], seconds: float, draw: Callable[[], float]) -> list[TraceJob]:
    """The jobs, each up to `seconds` earlier or later; `draw` gives uniform numbers from 0 to 1."""
    return [replace(job, submit=max(0.0, job.submit + (2.0 * draw() - 1.0) * seconds)) for job in jobs]


def only_type(policy: Policy) -> str:
    """The single resource type, for a trace's chips; raises TraceError if the quota file has none, or several."""
    resource_types = policy.resource_types
    if len(resource_types) != 1:
        raise TraceError(
            f"a trace has chips of one type, but the quota file has {len(resource_types)} resource types"
            f"{': ' if resource_types else ''}{', '.join(resource_types)}; use a quota file with exactly one"
        )
    return resource_types[0]


def shares_of(policy: Policy, resource_type: str) -> dict[str, float]:
    """Each project's fraction of the pool, for projects with a weight for the type."""
    weights = {
        project: resource_types[resource_type]
        for project, resource_types in policy.weights.items()
        if resource_type in resource_types
    }
    whole = sum(weights.values())
    return {project: weight / whole if whole else 0.0 for project, weight in weights.items()}


def scaled(policy: Policy, resource_type: str, window: Window) -> tuple[Policy, Window]:
    """The same quotas on the window's pool, as one tier, and the window with the entitlements they give."""
    sized = replace(policy, tiers=({resource_type: window.pool},))
    entitlements = {project: sized.entitlement(project, resource_type) for project in window.shares}
    return sized, replace(window, entitlements=entitlements, resource_type=resource_type)
