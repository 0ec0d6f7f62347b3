"""The jobs of `bastion simulate decide`, from JSON to the scheduler's own values.

Layer: cli. Everything is checked, and every problem names the entry's index and field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from bastion.cli.output import plain
from bastion.cli.parsing import did_you_mean
from bastion.core.errors import Refused
from bastion.core.instants import from_rfc3339
from bastion.core.limits import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from scheduler import Job, JobStatus

_NEEDED = ("name", "project_id", "user_id", "creation_time", "resources")
_KNOWN = (*_NEEDED, "priority", "status", "tier", "started_at")
_STATUSES = {"PENDING": JobStatus.PENDING, "ACTIVE": JobStatus.RUNNING}
_AMOUNT_MAX = 10**9
# The year 9999; later ones cannot be shown as a date.
_INSTANT_MAX = 253_402_300_799.0


def parse_jobs(data: bytes) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """Reads a JSON list of jobs.

    Returns:
        The jobs in the order of the list, and the fields that nothing here knows.

    Raises:
        Refused: it is not such a list; the message names the first bad entry and field.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the jobs are not JSON: {plain(error)}; write a list of objects") from error
    if not isinstance(document, list):
        raise Refused(f"the jobs are {_kind(document)}; write a list of objects: [{{...}}, {{...}}]")
    jobs: list[Job] = []
    places: dict[str, int] = {}
    unknown: dict[str, None] = {}
    for index, entry in enumerate(document):
        if not isinstance(entry, dict):
            raise Refused(f"jobs[{index}] is {_kind(entry)}; write an object with {', '.join(_NEEDED)}")
        job = _Entry(index, entry).job()
        if job.name in places:
            raise Refused(
                f"jobs[{index}].name is {_shown(job.name)}, as in jobs[{places[job.name]}]; names must differ"
            )
        places[job.name] = index
        unknown.update(dict.fromkeys(name for name in entry if name not in _KNOWN))
        jobs.append(job)
    return tuple(jobs), tuple(unknown)


def parse_instant(value: object) -> float | None:
    """Seconds since the epoch, or an RFC 3339 text; None if it is neither."""
    if isinstance(value, str):
        try:
            value = from_rfc3339(value)
        except (ValueError, OverflowError):
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= _INSTANT_MAX else None


class _Entry:
    """One object of the list."""

    def __init__(self, index: int, fields: Mapping[str, Any]) -> None:
        self._index = index
        self._fields = fields

    def job(self) -> Job:
        for name in _NEEDED:
            if name not in self._fields:
                near = did_you_mean(name, [other for other in self._fields if other not in _KNOWN])
                raise Refused(f"jobs[{self._index}].{name} is missing{plain(near)}")
        status = self._status()
        created = self._instant("creation_time")
        running = status is JobStatus.RUNNING
        demand = self._resources()
        if "tier" in self._fields and self._fields["tier"] is not None and not running:
            self._refuse("tier", "has a meaning only for an ACTIVE job; leave it out")
        return Job(
            name=self._text("name"),
            project_id=self._text("project_id"),
            user_id=self._text("user_id"),
            priority=self._whole("priority", PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT),
            queued_at=created,
            demand=demand,
            status=status,
            tier=self._whole("tier", 0, 1000, 0) if running else None,
            charged=demand if running else {},
            started_at=(self._instant("started_at") if "started_at" in self._fields else created) if running else None,
        )

    def _refuse(self, name: str, problem: str) -> NoReturn:
        raise Refused(f"jobs[{self._index}].{name} is {_shown(self._fields[name])}; {problem}")

    def _text(self, name: str) -> str:
        value = self._fields[name]
        if not isinstance(value, str) or not value:
            self._refuse(name, "write a text that is not empty")
        return value

    def _status(self) -> JobStatus:
        value = self._fields.get("status", "PENDING")
        if not isinstance(value, str) or value not in _STATUSES:
            self._refuse("status", "write PENDING or ACTIVE")
        return _STATUSES[value]

    def _instant(self, name: str) -> float:
        instant = parse_instant(self._fields[name])
        if instant is None:
            self._refuse(name, "write seconds since 1970, or an instant like 2026-01-02T03:04:05Z")
        return instant

    def _whole(self, name: str, least: int, most: int, default: int) -> int:
        value = self._fields.get(name)
        if value is None:
            return default
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, f"write a whole number from {least} to {most}")
        return value

    def _resources(self) -> dict[str, int]:
        value = self._fields["resources"]
        if not isinstance(value, dict):
            self._refuse("resources", 'write units by resource type, like {"v4": 32}')
        for kind, amount in value.items():
            if type(amount) is not int or not 0 <= amount <= _AMOUNT_MAX:
                raise Refused(
                    f"jobs[{self._index}].resources[{_shown(kind)}] is {_shown(amount)}; "
                    f"write a whole number of units from 0 to {_AMOUNT_MAX}"
                )
        return dict(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    text = plain(json.dumps(value, ensure_ascii=False) if not _is_odd(value) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
