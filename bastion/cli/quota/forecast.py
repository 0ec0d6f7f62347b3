"""When waiting jobs would start under another quota file, and a replay of the last days, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bastion.cli import phrases
from bastion.cli.output import table
from bastion.core.instants import to_rfc3339

if TYPE_CHECKING:
    from bastion.client.quota.whatif import Past, WhatIf
    from scheduler import Job
    from scheduler.simulation.forecast import Eta
    from scheduler.simulation.queue_outlook import Queued
    from scheduler.simulation.whatif import Comparison, Tally

# The JSON holds all of them.
_QUEUE_SHOWN = 30
_NEVER_SHOWN = 10
# Smaller differences are not shown.
_SAME_SECONDS = 60.0


def lines(answer: WhatIf, now: float) -> Iterator[str]:
    """The answer as text; `now` in seconds since the epoch."""
    yield from _queue_lines(answer, now)
    yield ""
    yield from _past_lines(answer.past)
    if answer.delegated:
        yield f"Jobs of {', '.join(answer.delegated)} left out: order and ETA are Kueue's"


def _queue_lines(answer: WhatIf, now: float) -> Iterator[str]:
    queue = answer.queue
    if not queue and not answer.untold:
        yield "No jobs are waiting" if answer.forecast.snapshot is not None else "There are no jobs now"
        return
    yield f"Waiting jobs: {len(queue) + answer.untold}; estimated start (p50)"
    shown = queue[:_QUEUE_SHOWN]
    rows = [
        (
            one.job.name,
            one.job.project_id,
            _start(one.before, now),
            _start(one.after, now),
            _change(one.before.p50, one.after.p50, "sooner", "later"),
        )
        for one in shown
    ]
    yield from _table(("JOB", "PROJECT", "NOW", "THEN", ""), rows)
    yield from _unknown_starts(shown)
    more = len(queue) - len(shown)
    if more:
        yield f"  and {more} more (use --output=json to see all)"
    if answer.untold:
        yield f"  and {phrases.count(answer.untold, 'job')} too far back in the queue for an estimate"


def _unknown_starts(queued: Sequence[Queued]) -> Iterator[str]:
    """Why starts are unknown, one line per reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in queued:
        for when, eta in (("now", one.before), ("then", one.after)):
            if eta.p50 is None:
                found.setdefault((when, eta.why), []).append(one.job.name)
    for (when, why), names in found.items():
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"  unknown {when} for {', '.join(names[:3])}{rest}: {why}"


def _past_lines(past: Past) -> Iterator[str]:
    found = past.comparison
    if found is None:
        yield f"Cannot replay the last days: {past.why}"
        return
    covered = phrases.duration(found.end - found.begin)
    whole = f"The last {phrases.count(past.days, 'day')}"
    yield (
        f"{whole}, replayed under both files"
        if not past.why
        else (f"The last {covered} of {phrases.count(past.days, 'day')}, replayed under both files: {past.why}")
    )
    rows = [
        _row(project, found.before.projects[project], found.after.projects[project]) for project in _projects(found)
    ]
    header = ("PROJECT", "JOBS", "MEAN WAIT", "CHANGE", "P50", "P95", "EVICTIONS", "NEVER START")
    yield from _table(header, [*rows, _row("total", found.before.total, found.after.total)])
    yield from _table(("PROJECT", "TYPE", "UNIT-HOURS HELD", "CHANGE"), list(_held_rows(found)))
    if found.after.total.overtime or found.before.total.overtime:
        yield (
            "Jobs that reach a maximum runtime: "
            f"{_arrow(str(found.before.total.overtime), str(found.after.total.overtime))}"
        )
    yield from _never_lines("Jobs of these days that would never start", found.after.never, found.before.never)
    title = "Jobs of these days that would start only under the new file"
    yield from _never_lines(title, found.before.never, found.after.never)
    if past.unknown:
        yield (
            f"{phrases.count(past.unknown, 'waiting job')} left out: no estimate of "
            f"{'its duration' if past.unknown == 1 else 'their durations'}"
        )


def _never_lines(title: str, never: Sequence[tuple[Job, str]], otherwise: Sequence[tuple[Job, str]]) -> Iterator[str]:
    known = {job.name for job, _ in otherwise}
    found = [(job, why) for job, why in never if job.name not in known]
    if found:
        yield f"{title}: {len(found)}"
        for job, why in found[:_NEVER_SHOWN]:
            yield f"  {job.name} of project {job.project_id}, user {job.user_id}: {why}"
        if len(found) > _NEVER_SHOWN:
            yield f"  and {len(found) - _NEVER_SHOWN} more (use --output=json to see all)"


def _row(project: str, before: Tally, after: Tally) -> tuple[str, ...]:
    return (
        project,
        str(before.jobs),
        _arrow(_wait(before.wait_mean), _wait(after.wait_mean)),
        _change(before.wait_mean, after.wait_mean, "shorter", "longer"),
        _arrow(_wait(before.wait_p50), _wait(after.wait_p50)),
        _arrow(_wait(before.wait_p95), _wait(after.wait_p95)),
        _arrow(str(before.evictions), str(after.evictions)),
        _arrow(str(before.never), str(after.never)),
    )


def _held_rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    for project in _projects(found):
        before, after = found.before.projects[project].held, found.after.projects[project].held
        for resource_type in sorted({*before, *after}):
            one, other = (round(held.get(resource_type, 0.0) / 3600.0) for held in (before, after))
            yield project, resource_type, _arrow(str(one), str(other)), "" if one == other else f"{other - one:+d}"


def _projects(found: Comparison) -> list[str]:
    """The projects; both replays have the same jobs."""
    return sorted(found.before.projects)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for line in table(header, rows).splitlines():
        yield f"  {line}"


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _start(eta: Eta, now: float) -> str:
    if eta.p50 is None:
        return "unknown"
    return "at once" if eta.p50 - now < _SAME_SECONDS else f"in {phrases.duration(eta.p50 - now)}"


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else phrases.duration(seconds)


def _change(before: float | None, after: float | None, less: str, more: str) -> str:
    """The difference as text; empty if there is none, or a value is unknown."""
    if before is None or after is None or abs(after - before) < _SAME_SECONDS:
        return ""
    return f"{phrases.duration(abs(after - before))} {less if after < before else more}"


def document(answer: WhatIf) -> dict[str, Any]:
    """`queue` and `past`, for `--output=json`."""
    past, found = answer.past, answer.past.comparison
    return {
        "queue": {
            "jobs": [
                {
                    "name": one.job.name,
                    "project_id": one.job.project_id,
                    "user_id": one.job.user_id,
                    "before": _eta_document(one.before),
                    "after": _eta_document(one.after),
                }
                for one in answer.queue
            ],
            "untold": answer.untold,
        },
        "delegated": list(answer.delegated),
        "past": {
            "days": past.days,
            "covered": None if found is None else {"begin": to_rfc3339(found.begin), "end": to_rfc3339(found.end)},
            "why": past.why or None,
            "from_ended_jobs": past.ended,
            "jobs_of_unknown_duration": past.unknown,
            "projects": {}
            if found is None
            else {
                project: {
                    "before": _tally_document(found.before.projects[project]),
                    "after": _tally_document(found.after.projects[project]),
                }
                for project in _projects(found)
            },
            "total": None
            if found is None
            else {"before": _tally_document(found.before.total), "after": _tally_document(found.after.total)},
            "never_before": [] if found is None else _never_document(found.before.never),
            "never_after": [] if found is None else _never_document(found.after.never),
        },
    }


def _eta_document(eta: Eta) -> dict[str, Any]:
    instants = {"p10": eta.p10, "p50": eta.p50, "p90": eta.p90}
    shown = {name: None if instant is None else to_rfc3339(instant) for name, instant in instants.items()}
    return {**shown, "why": eta.why or None}


def _tally_document(tally: Tally) -> dict[str, Any]:
    return {
        "jobs": tally.jobs,
        "never_start": tally.never,
        "wait_mean_seconds": tally.wait_mean,
        "wait_p50_seconds": tally.wait_p50,
        "wait_p95_seconds": tally.wait_p95,
        "evictions": tally.evictions,
        "overtime": tally.overtime,
        "held_unit_seconds": dict(tally.held),
    }


def _never_document(never: Sequence[tuple[Job, str]]) -> list[dict[str, str]]:
    return [
        {"name": job.name, "project_id": job.project_id, "user_id": job.user_id, "message": why} for job, why in never
    ]
