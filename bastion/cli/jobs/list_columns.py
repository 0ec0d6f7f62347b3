"""The columns of `bastion list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bastion.cli import phrases
from bastion.cli.rows import Column
from bastion.client.jobs.listing import JobRow
from bastion.client.jobs.selection import INVALID, SUBMITTED
from bastion.core import limits
from bastion.core.instants import to_rfc3339
from bastion.core.status.document import Phase

if TYPE_CHECKING:
    from bastion.client.jobs.eta import Estimate

_STYLES = {
    Phase.RUNNING.value: "green",
    Phase.PROVISIONING.value: "cyan",
    Phase.QUEUED.value: "yellow",
    SUBMITTED: "yellow",
    Phase.STOPPING.value: "magenta",
    Phase.CLEANING.value: "magenta",
    "INVALID": "red",
    "failed": "red",
    "refused": "red",
    "cancelled": "dim",
    "succeeded": "dim",
}


def columns(
    now: float, *, unverified: bool, backlog: bool, estimates: Mapping[str, Estimate] | None
) -> Sequence[Column[JobRow]]:
    """The columns, in order.

    Args:
        unverified: Nothing but the specs says whose jobs these are.
        backlog: A queue limit may keep a submitted job out.
        estimates: When the waiting jobs start, by name; None: no such column.
    """
    waits = "waiting for the scheduler" + " or over a queue limit" * backlog
    found: list[Column[JobRow]] = [
        Column(key="name", title="NAME", text=_name, value=lambda row: row.name, shortened=True),
        Column(key="status", title="STATUS", text=_status, value=lambda row: row.status, style=_style),
        Column(key="position", title="POS", text=lambda row: _number(row.position), value=_position, leaves=5),
        Column(key="priority", title="PRI", text=lambda row: _number(row.priority), value=_priority, leaves=7),
        Column(key="project", title="PROJECT", text=lambda row: row.project_id or "-", leaves=6, shortened=True),
        Column(
            key="user",
            title="USER (UNVERIFIED)" if unverified else "USER",
            text=lambda row: row.user_id or "-",
            leaves=8,
            shortened=True,
        ),
        Column(key="resources", title="RESOURCES", text=_resources, leaves=3),
        Column(
            key="queued_at",
            title="AGE",
            text=lambda row: phrases.age(row.queued_at, now),
            value=lambda row: _instant(row.queued_at),
            leaves=4,
        ),
        Column(
            key="running_since",
            title="RUN",
            text=lambda row: _run_time(row, now),
            value=lambda row: _instant(row.running_since),
            leaves=2,
        ),
    ]
    if estimates is not None:
        found.append(
            Column(
                key="estimated_start",
                title="STARTS",
                text=lambda row: _eta(estimates.get(row.name), now),
                value=lambda row: _eta_instant(estimates.get(row.name)),
            )
        )
    return [
        *found,
        Column(key="attempt", title="ATTEMPT", text=lambda row: _number(_attempt(row)), value=_attempt, wide=True),
        Column(key="tier", title="TIER", text=lambda row: _number(_of_entry(row, "tier")), wide=True),
        Column(key="zone", title="ZONE", text=lambda row: str(_of_entry(row, "zone") or "-"), wide=True),
        Column(key="group", title="GROUP", text=_group, wide=True),
        Column(key="uid", title="UID", text=lambda row: row.uid or "-", wide=True),
        Column(
            key="ended_at",
            title="ENDED",
            text=lambda row: phrases.age(row.ended_at, now),
            value=lambda row: _instant(row.ended_at),
            wide=True,
        ),
        Column(key="detail", title="REASON/HOSTS", text=lambda row: _detail(row, now, waits), leaves=1, shortened=True),
    ]


def _style(status: str) -> str:
    return _STYLES.get(status, "")


def _name(row: JobRow) -> str:
    """No job has a longer name; anybody can write one, and it would set the width of the column for all."""
    most = limits.NAME_MAX_CHARS
    return row.name if len(row.name) <= most else f"{row.name[:most]}..."


def _status(row: JobRow) -> str:
    return "INVALID" if row.status == INVALID else row.status


def _number(value: object) -> str:
    return "-" if value is None else str(value)


def _position(row: JobRow) -> object:
    return row.position


def _priority(row: JobRow) -> object:
    return row.priority


def _resources(row: JobRow) -> str:
    return phrases.resources(row.instance_type, row.num_replicas, row.resources)


def _instant(seconds: float | None) -> str | None:
    return None if seconds is None else to_rfc3339(seconds)


def _run_time(row: JobRow, now: float) -> str:
    """Of the present attempt, or of a completed job's last one."""
    if row.running_since is None:
        return "-"
    return phrases.age(row.running_since, row.ended_at if row.ended_at is not None else now)


def _eta(estimate: Estimate | None, now: float) -> str:
    if estimate is None:
        return "-"
    start = estimate.eta.p50
    return "unknown" if start is None else f"~{phrases.duration(max(0.0, start - now))}"


def _eta_instant(estimate: Estimate | None) -> str | None:
    return None if estimate is None else _instant(estimate.eta.p50)


def _attempt(row: JobRow) -> object:
    if row.result is not None:
        return len(row.result.attempts)
    return _of_entry(row, "attempt")


def _group(row: JobRow) -> str:
    return (row.result.group if row.result is not None else str(_of_entry(row, "group") or "")) or "-"


def _of_entry(row: JobRow, name: str) -> object:
    return None if row.entry is None else getattr(row.entry, name)


def _detail(row: JobRow, now: float, waits: str) -> str:
    """Why it waits, where it runs, or how it ended."""
    if row.entry is not None:
        phase = row.entry.phase
        text = phrases.progress(row.entry, now)
        text = text.removeprefix("ending" if phase == "stopping" else phase).removeprefix(phase).removeprefix(":")
        return "; ".join(filter(None, (text.strip(), row.entry.problem))) or "-"
    if row.result is not None:
        return row.result.message or "-"
    return row.problem or (waits if row.status == SUBMITTED else "-")
