"""The scheduler's jobs, read from the published status, for what-if questions outside the daemon.

The status lacks jobs with an unreadable state (an alarm names them), backoffs, and the beneficiaries of stopping jobs.
The latter do not matter for evictions: units being freed count as free later in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bastion.core.errors import InvalidDocument
from bastion.core.instants import from_rfc3339
from bastion.core.model.lifecycle import Status
from scheduler import Job, JobStatus, ReasonCode
from scheduler.model import RecentUnits


def published_jobs(status: Mapping[str, Any]) -> tuple[Job, ...]:
    """The jobs of `status/current.json` that hold or want capacity.

    Args:
        status: The document, in a known format.

    Raises:
        InvalidDocument: An entry is malformed.
    """
    entries = status.get("jobs")
    if not isinstance(entries, list):
        raise InvalidDocument("the published status has no list of jobs")
    jobs = [job for entry in entries if (job := _read(entry)) is not None]
    if len({job.name for job in jobs}) != len(jobs):
        raise InvalidDocument("the published status has a job twice")
    return tuple(jobs)


def published_usage(status: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """`Snapshot.user_usage` at the instant of the status; malformed parts are omitted."""
    usage = status.get("usage")
    projects = usage.get("projects") if isinstance(usage, dict) else None
    found: dict[str, dict[str, float]] = {}
    for project, users in projects.items() if isinstance(projects, dict) else ():
        if isinstance(users, dict):
            numbers = {user: float(used) for user, used in users.items() if type(used) in (int, float) and used > 0}
            found[project] = numbers
    return found


def published_holdings(status: Any) -> dict[str, dict[str, RecentUnits]]:
    """What `Snapshot.held_recently` wants, but for what runs now; what is not as we write it is left out."""
    return {
        project: {resource_type: _steps(steps) for resource_type, steps in by_type.items()}
        for project, by_type in _part(status, "kept").items()
        if isinstance(by_type, dict)
    }


def _steps(steps: Any) -> RecentUnits:
    try:
        return tuple((from_rfc3339(until), int(units)) for until, units in steps)
    except (TypeError, ValueError, OverflowError):
        return ()


def published_restart_seconds(status: Any) -> dict[str, float]:
    """`Snapshot.restart_seconds`; malformed parts are omitted."""
    costs = _part(status, "restart_seconds").items()
    return {
        resource_type: float(seconds)
        for resource_type, seconds in costs
        if type(seconds) in (int, float) and seconds >= 0
    }


def _part(status: Any, name: str) -> dict[str, Any]:
    idle = status.get("idle") if isinstance(status, dict) else None
    part = idle.get(name) if isinstance(idle, dict) else None
    return part if isinstance(part, dict) else {}


def _read(entry: Any) -> Job | None:
    try:
        status = Status(entry["status"])
        has_attempt = entry["attempt"] is not None
        if not has_attempt and status is not Status.PENDING:
            return None  # holds nothing and does not run
        amounts = {str(resource_type): int(amount) for resource_type, amount in entry["resources"].items()}
        reason = entry["reason"]
        if not has_attempt:
            does = JobStatus.PENDING
        elif entry["stopping"] is not None or status is Status.CANCELLING:
            does = JobStatus.STOPPING
        else:
            does = JobStatus.RUNNING
        return Job(
            name=str(entry["name"]),
            project_id=str(entry["project_id"]),
            user_id=str(entry["user_id"]),
            priority=int(entry["priority"]),
            queued_at=from_rfc3339(entry["queued_at"]),
            demand=amounts,
            status=does,
            tier=None if entry["tier"] is None else int(entry["tier"]),
            # A spec changes only while its job waits, so a job's usage equals its demand.
            charged=amounts if has_attempt else {},
            started_at=from_rfc3339(entry["started_at"]) if has_attempt else None,
            on_bastion=entry["instance_type"] is None,
            waiting_since=from_rfc3339(reason["since"]) if reason else None,
            checkpointed_at=from_rfc3339(entry["checkpointed_at"]) if entry.get("checkpointed_at") else None,
            promised=bool(reason) and reason["code"] == ReasonCode.WAITING_FOR_PREEMPTED.value,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidDocument(f"an entry of the published status is not as a daemon writes it: {error!r}") from error
