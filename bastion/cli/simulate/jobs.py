"""Parse the jobs of `bastion simulate decide`; every problem names the entry's index and field."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

from bastion.cli.output import plain
from bastion.cli.parsing import did_you_mean
from bastion.core.errors import Refused
from bastion.core.instants import from_rfc3339
from bastion.core.limits import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from scheduler import Job, JobStatus, Scaling

_NEEDED = ("name", "project_id", "user_id", "creation_time", "resources")
_KNOWN = (*_NEEDED, "priority", "status", "tier", "started_at", "scaling_specs", "replicas", "after")
# As in a job spec.
_SCALINGS_MAX = 16
_REPLICAS_MAX = 10_000
_STATUSES = {"PENDING": JobStatus.PENDING, "ACTIVE": JobStatus.RUNNING}
_AMOUNT_MAX = 10**9
# The year 9999; a date cannot be later.
_INSTANT_MAX = 253_402_300_799.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenJobs:
    """The parsed list: `least` has the `min_replicas` of each elastic job by scaling, `unknown` the unknown fields."""

    jobs: tuple[Job, ...]
    least: Mapping[str, tuple[int, ...]]
    unknown: tuple[str, ...]


def parse_jobs(data: bytes) -> GivenJobs:
    """Parse a JSON list of jobs; raises `Refused`, which names the first bad entry and field."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the jobs are not valid JSON: {plain(error)}; they must be a list of objects") from error
    if not isinstance(document, list):
        raise Refused(f"the jobs are {_json_type(document)}; they must be a list of objects: [{{...}}, {{...}}]")
    jobs: list[Job] = []
    places: dict[str, int] = {}
    least: dict[str, tuple[int, ...]] = {}
    unknown: dict[str, None] = {}
    for index, entry in enumerate(document):
        if not isinstance(entry, dict):
            raise Refused(f"jobs[{index}] is {_json_type(entry)}; it must be an object with {', '.join(_NEEDED)}")
        job = _Entry(index, entry).job()
        if job.name in places:
            raise Refused(f"jobs[{index}].name is {_shown(job.name)}, like jobs[{places[job.name]}]; names must differ")
        places[job.name] = index
        unknown.update(dict.fromkeys(name for name in entry if name not in _KNOWN))
        if job.scaling:
            least[job.name] = tuple(spec["min_replicas"] for spec in entry["scaling_specs"])
        jobs.append(job)
    return GivenJobs(jobs=tuple(jobs), least=least, unknown=tuple(unknown))


def parse_instant(value: object) -> float | None:
    """Parse seconds since the epoch or an ISO 8601 text (default zone: UTC); None if it is neither."""
    if isinstance(value, str):
        value = _seconds(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= _INSTANT_MAX else None


def _seconds(text: str) -> float | None:
    with contextlib.suppress(ValueError, OverflowError):
        return from_rfc3339(text)
    with contextlib.suppress(ValueError, OverflowError):
        return float(text)
    with contextlib.suppress(ValueError, OverflowError):
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)).timestamp()
    return None


class _Entry:
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
        resources = self._amounts(self._fields["resources"], "resources")
        scaling, demand, charged = self._elastic(resources, running=running)
        if "tier" in self._fields and self._fields["tier"] is not None and not running:
            self._refuse("tier", "it applies only to an ACTIVE job; leave it out")
        return Job(
            name=self._text("name"),
            project_id=self._text("project_id"),
            user_id=self._text("user_id"),
            priority=self._whole("priority", PRIORITY_MIN, PRIORITY_MAX, PRIORITY_DEFAULT),
            queued_at=created,
            demand=demand,
            status=status,
            tier=self._whole("tier", 0, 1000, 0) if running else None,
            charged=charged,
            started_at=(self._instant("started_at") if "started_at" in self._fields else created) if running else None,
            scaling=scaling,
            after=self._after(running=running),
        )

    def _refuse(self, name: str, problem: str) -> NoReturn:
        raise Refused(f"jobs[{self._index}].{name} is {_shown(self._fields[name])}; {problem}")

    def _text(self, name: str) -> str:
        value = self._fields[name]
        if not isinstance(value, str) or not value:
            self._refuse(name, "it must be a non-empty string")
        return value

    def _status(self) -> JobStatus:
        value = self._fields.get("status", "PENDING")
        if not isinstance(value, str) or value not in _STATUSES:
            self._refuse("status", "it must be PENDING or ACTIVE")
        return _STATUSES[value]

    def _instant(self, name: str) -> float:
        instant = parse_instant(self._fields[name])
        if instant is None:
            self._refuse(name, "it must be seconds since 1970, or like 2026-01-02T03:04:05Z")
        return instant

    def _after(self, *, running: bool) -> tuple[str, ...]:
        names = self._fields.get("after")
        if names is None:
            return ()
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            self._refuse("after", "it must be a list of names of jobs that it awaits")
        if running and names:
            self._refuse("after", "it applies only to a PENDING job; leave it out")
        return tuple(dict.fromkeys(names))

    def _whole(self, name: str, least: int, most: int, default: int) -> int:
        value = self._fields.get(name)
        if value is None:
            return default
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, f"it must be a whole number from {least} to {most}")
        return value

    def _elastic(
        self, resources: dict[str, int], *, running: bool
    ) -> tuple[tuple[Scaling, ...], dict[str, int], dict[str, int]]:
        """The scalings; what the job needs (their minimum if there are any); and what it is using."""
        specs = self._fields.get("scaling_specs")
        if specs is None or specs == []:
            if self._fields.get("replicas") is not None:
                self._refuse("replicas", "it applies only with scaling_specs; leave it out")
            return (), resources, resources if running else {}
        if not isinstance(specs, list) or len(specs) > _SCALINGS_MAX:
            self._refuse("scaling_specs", f"it must be a list of at most {_SCALINGS_MAX} objects")
        bounds = [self._bounds(place, spec) for place, spec in enumerate(specs)]
        replicas = self._replicas(bounds, running=running)
        scaling = []
        demand: dict[str, int] = {}
        held: dict[str, int] = {}
        for (least, most, units), count in zip(bounds, replicas, strict=True):
            scaling.append(Scaling(per_replica=units, most=most - least, extra=count - least))
            for resource_type, amount in units.items():
                demand[resource_type] = demand.get(resource_type, 0) + least * amount
                held[resource_type] = held.get(resource_type, 0) + count * amount
        return tuple(scaling), demand, held if running else {}

    def _bounds(self, place: int, spec: object) -> tuple[int, int, dict[str, int]]:
        """Minimum and maximum replicas of a scaling, and the units of one replica."""
        at = f"jobs[{self._index}].scaling_specs[{place}]"
        if not isinstance(spec, dict):
            raise Refused(
                f"{at} is {_json_type(spec)}; it must have min_replicas, max_replicas and resources_per_replica"
            )
        least, most = spec.get("min_replicas"), spec.get("max_replicas")
        if type(least) is not int or type(most) is not int or not 1 <= least <= most <= _REPLICAS_MAX:
            raise Refused(
                f"{at} has min_replicas {_shown(least)} and max_replicas {_shown(most)}; "
                f"they must be whole numbers from 1 to {_REPLICAS_MAX}, the first at most the second"
            )
        name = f"scaling_specs[{place}].resources_per_replica"
        return least, most, self._amounts(spec.get("resources_per_replica"), name)

    def _replicas(self, bounds: list[tuple[int, int, dict[str, int]]], *, running: bool) -> list[int]:
        """The replicas of an active job by scaling; default: the minimum."""
        given = self._fields.get("replicas")
        if given is None:
            return [least for least, _, _ in bounds]
        if not running:
            self._refuse("replicas", "it applies only to an ACTIVE job; leave it out")
        if not isinstance(given, list) or len(given) != len(bounds):
            self._refuse("replicas", "it must have one number for each of scaling_specs")
        for count, (least, most, _) in zip(given, bounds, strict=True):
            if type(count) is not int or not least <= count <= most:
                self._refuse("replicas", "each number must be from min_replicas to max_replicas")
        return given

    def _amounts(self, value: object, name: str) -> dict[str, int]:
        if not isinstance(value, dict):
            raise Refused(
                f'jobs[{self._index}].{name} is {_shown(value)}; it must be units by resource type, like {{"v4": 32}}'
            )
        for resource_type, amount in value.items():
            if type(amount) is not int or not 0 <= amount <= _AMOUNT_MAX:
                raise Refused(
                    f"jobs[{self._index}].{name}[{_shown(resource_type)}] is {_shown(amount)}; "
                    f"it must be a whole number of units from 0 to {_AMOUNT_MAX}"
                )
        return dict(value)


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    text = plain(json.dumps(value, ensure_ascii=False) if not _is_odd(value) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
