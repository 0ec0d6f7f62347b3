"""What a new quota file would do to the jobs, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bastion.cli import phrases
from bastion.core.instants import to_rfc3339

if TYPE_CHECKING:
    from bastion.client.quota.upload import Forecast
    from bastion.core.status.document import JobEntry
    from scheduler.simulation.policy_change import Barred, Stopped

# The JSON holds all of them.
_STOPPED_SHOWN = 50
_OTHERS_SHOWN = 10


def lines(forecast: Forecast, now: float) -> Iterator[str]:
    """The effect as text; `now` in seconds since the epoch."""
    effect = forecast.effect
    if effect.stopped:
        yield f"Running jobs that would stop: {len(effect.stopped)}"
        for stopped in effect.stopped[:_STOPPED_SHOWN]:
            yield from _stopped_lines(stopped, forecast.entries[stopped.job.name], now)
        yield from _more(len(effect.stopped) - _STOPPED_SHOWN)
    yield from _barred_lines("Running jobs that would continue but could not restart", effect.barred_running)
    yield from _barred_lines("Waiting jobs that could no longer start", effect.barred_waiting)
    if effect.starting:
        yield f"Waiting jobs that would start at once: {len(effect.starting)}"
        yield f"  {', '.join(effect.starting[:_OTHERS_SHOWN])}"
        yield from _more(len(effect.starting) - _OTHERS_SHOWN)
    if effect.borrowing or effect.overfull:
        yield "Running jobs would continue, but:"
    for project in effect.borrowing[:_OTHERS_SHOWN]:
        yield (
            f"  project {project.project} is using {project.held} {project.resource_type}; its share would be "
            f"{project.entitlement} instead of {project.entitlement_before}, and owners may reclaim the excess"
        )
    yield from _more(len(effect.borrowing) - _OTHERS_SHOWN)
    for pool in effect.overfull:
        yield (
            f"  {pool.used} of {pool.total} {pool.resource_type} would be in use: "
            "no job of this type could start until others end"
        )


def _stopped_lines(stopped: Stopped, entry: JobEntry, now: float) -> Iterator[str]:
    job = stopped.job
    running = entry.running_since is not None
    since = entry.running_since if running else entry.started_at
    doing = f"{'running' if running else 'starting'} for {phrases.age(since, now)}"
    needs = phrases.resources(entry.instance_type, entry.num_replicas, entry.resources)
    yield f"  {job.name} of project {job.project_id}, user {job.user_id}: {needs}, {doing}"
    yield f"    {stopped.message}"


def _barred_lines(title: str, barred: tuple[Barred, ...]) -> Iterator[str]:
    if barred:
        yield f"{title}: {len(barred)}"
        for bar in barred[:_OTHERS_SHOWN]:
            yield f"  {bar.job.name}: {bar.message}"
        yield from _more(len(barred) - _OTHERS_SHOWN)


def _more(number: int) -> Iterator[str]:
    if number > 0:
        yield f"  and {number} more (use --output=json to see all)"


def document(forecast: Forecast) -> dict[str, Any]:
    effect = forecast.effect
    return {
        "doubts": list(forecast.doubts),
        "stopped": [
            {
                "name": stopped.job.name,
                "project_id": stopped.job.project_id,
                "user_id": stopped.job.user_id,
                "resources": dict(stopped.job.charged),
                "running_since": _instant(forecast.entries[stopped.job.name].running_since),
                "claimant": stopped.claimant,
                "message": stopped.message,
            }
            for stopped in effect.stopped
        ],
        "barred_running": _barred_document(effect.barred_running),
        "barred_waiting": _barred_document(effect.barred_waiting),
        "starting": list(effect.starting),
        "borrowing": [
            {
                "project_id": project.project,
                "resource_type": project.resource_type,
                "held": project.held,
                "entitlement_before": project.entitlement_before,
                "entitlement": project.entitlement,
            }
            for project in effect.borrowing
        ],
        "overfull": [
            {"resource_type": pool.resource_type, "used": pool.used, "total": pool.total} for pool in effect.overfull
        ],
    }


def _instant(seconds: float | None) -> str | None:
    return None if seconds is None else to_rfc3339(seconds)


def _barred_document(barred: tuple[Barred, ...]) -> list[dict[str, str]]:
    return [{"name": bar.job.name, "message": bar.message} for bar in barred]
