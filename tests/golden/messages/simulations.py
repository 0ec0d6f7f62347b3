"""Policy changes, forecasts and traces that together give every message of the simulations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from bastion.cli.quota import effect
from bastion.client.quota.upload import Forecast
from bastion.core.status.document import JobEntry
from quota import Policy, ProjectRules
from scheduler import Job, Snapshot
from scheduler.simulation.durations import Durations
from scheduler.simulation.forecast import JOBS_AHEAD_MAX, forecast
from scheduler.simulation.policy_change import effect_of
from scheduler.simulation.replay import trace
from tests.golden.messages.passes import DAY, HOUR, NOW, pending, policy, running

_NOBODY: dict[str, dict[str, Any]] = {"weights": {}, "members": {}}
_CSV = "job_id,project,submit_s,duration_s,chips\n"


def effects() -> Iterator[tuple[str, Iterable[Job], Policy, Policy]]:
    """Titles, jobs, and the policies before and after."""
    quick = ProjectRules(minimum_runtime_seconds=60)
    half, long = policy(quick), (running("r", "a", 64, started_at=NOW - 3 * HOUR), pending("j", "b", 32))
    yield "an owner gets a share", long, policy(quick, b=ProjectRules(hold=True)), half
    yield "a maximum runtime", long[:1], policy(), policy(ProjectRules(maximum_runtime_seconds=2 * HOUR))
    yield "a project goes", (*long[:1], pending("k", "c", 8)), policy(), Policy(tiers=({"v4": 64},), **_NOBODY)
    yield "a smaller pool", (running("r", "a", 32), pending("k", "a", 48)), policy(), policy(total=16)
    yield "a limit", (pending("k", "a", 48),), policy(), policy(ProjectRules(borrowing_limit={"v4": 8}))
    yield "a hold", (running("r", "a", 32),), policy(), policy(ProjectRules(hold=True))
    many = (running(f"r{number}", "a", 8) for number in range(11))
    yield "many jobs", many, policy(total=128), policy(ProjectRules(hold=True), total=128)
    yield "a larger pool", (running("r", "a", 64), pending("k", "a", 8)), policy(), policy(total=128)


def effect_lines(jobs: Iterable[Job], before: Policy, after: Policy) -> Iterator[str]:
    snapshot = Snapshot(policy=before, jobs=tuple(jobs))
    return effect.lines(
        Forecast(effect=effect_of(snapshot, after, NOW), entries={job.name: _entry(job) for job in snapshot.jobs}),
        NOW,
    )


def _entry(job: Job) -> JobEntry:
    return JobEntry(
        name=job.name,
        uid=job.name,
        project_id=job.project_id,
        user_id=job.user_id,
        priority=job.priority,
        resources=dict(job.demand),
        queued_at=job.queued_at,
        started_at=job.started_at,
        running_since=job.started_at,
    )


def forecasts() -> Iterator[tuple[str, Iterable[Job], Mapping[str, float], int]]:
    """Titles, jobs, declared durations, and the most decisions; the last job is asked for."""
    full = (running("r", "a", 64), pending("j", "b", 40))
    yield "a job that starts now", (pending("j", "a", 8),), {}, 1000
    yield "a job that never starts", (pending("j", "a", 128),), {}, 1000
    yield "no estimate of a job ahead", full, {}, 1000
    yield "no estimate of two", (running("r", "a", 32), running("s", "a", 32), full[-1]), {}, 1000
    yield "a month", full, {"r": 90 * DAY}, 1000
    yield "too much work", full, {"r": 2 * HOUR}, 1
    queue = (pending(f"q{number}", "b", 64, queued_at=NOW - 90) for number in range(JOBS_AHEAD_MAX + 1))
    yield "after a job of unknown end", (pending("j", "b", 8, after=("gone",)),), {}, 1000
    large = pending("large", "a", 128)
    yield "after a job that never starts", (large, pending("j", "b", 8, after=("large",))), {}, 1000
    yield "after a job", (running("r", "a", 8), pending("j", "b", 8, after=("r",))), {"r": 2 * HOUR}, 1000
    chain = (pending(f"c{number}", "b", 8, after=(f"c{number + 1}",)) for number in range(JOBS_AHEAD_MAX + 1))
    yield "a long chain", (*chain, pending("j", "b", 8, after=("c0",))), {}, 1000
    yield "a long queue", (running("r", "a", 64), *queue, pending("j", "b", 64)), {}, 1000


def forecast_line(jobs: Iterable[Job], declared: Mapping[str, float], decisions_max: int) -> str:
    *others, asked = jobs
    # Nobody has a share, so nobody reclaims.
    (eta,) = forecast(
        Snapshot(policy=replace(policy(), weights={}), jobs=(*others, asked)),
        NOW,
        Durations((), declared),
        [asked.name],
        draws=20,
        draw=itertools.cycle((0.1, 0.5, 0.9)).__next__,
        horizon_seconds=30 * DAY,
        decisions_max=decisions_max,
    ).values()
    starts = "unknown" if eta.p50 is None else f"in {eta.p50 - NOW:.0f} s"
    return f"{asked.name} starts: {starts}" + (f": {eta.why}" if eta.why else "")


def traces() -> Iterator[tuple[str, str]]:
    yield "no columns", "job_id,project\n"
    yield "a short line", f"{_CSV}x,a\n"
    yield "no number", f"{_CSV}x,a,soon,1,8\n"
    yield "no chips", f"{_CSV}x,a,0,1,0\n"
    yield "twice", f"{_CSV}x,a,0,1,8\nx,a,0,1,8\n"
    yield "nothing in the window", f"{_CSV}x,z,0,1,8\n"
    yield "too large", f"{_CSV}x,a,0,1,8\n"


def trace_line(text: str) -> str:
    try:
        trace.fitting(trace.cut(trace.read(text.splitlines()), {"a": 1.0}, start_day=0, days=1, load=1))
    except trace.TraceError as error:
        return f"refused: {error}"
    raise AssertionError(f"accepted: {text}")


def type_line(quota: Policy) -> str:
    try:
        trace.only_type(quota)
    except trace.TraceError as error:
        return f"refused: {error}"
    raise AssertionError("accepted")


def text() -> str:
    """The golden text."""
    lines: list[str] = []
    for title, jobs, before, after in effects():
        lines += ["", f"# {title}", *effect_lines(jobs, before, after)]
    for title, jobs, declared, decisions_max in forecasts():
        lines += ["", f"# {title}", forecast_line(jobs, declared, decisions_max)]
    for resources in ({}, {"v4": 8, "v5p": 8}):
        lines += ["", f"# trace: {len(resources)} resource types", type_line(Policy(tiers=(resources,), **_NOBODY))]
    for title, data in traces():
        lines += ["", f"# trace: {title}", trace_line(data)]
    return "\n".join(lines) + "\n"
