"""Usage per user and project, decayed with the project's half-life.

The integral over time is exact, in one step or in a thousand: units r held for a time t add
`r * h / ln 2 * (1 - 2 ** (-t / h))`.

Invariant: while no job runs, the order of users does not change. Amounts are stored as of a reference instant per
project, and all scale by the same factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quota import Policy
from scheduler.model import Job, JobStatus

# Users kept per project; the least usage is dropped first.
_USERS_MAX = 10_000
# Unit-seconds; less counts as zero.
_USED_MIN = 1.0
# Half-lives after which the reference instant moves on, to keep the scale factors small.
_REFERENCE_HALF_LIVES = 16.0


@dataclass(slots=True)
class _Project:
    half_life: float
    reference: float
    # By user, unit-seconds as of `reference`.
    used: dict[str, float] = field(default_factory=dict)

    def decay(self, now: float) -> float:
        """The factor from the reference instant to `now`."""
        return math.pow(2.0, -(now - self.reference) / self.half_life)

    def add(self, user: str, units: int, start: float, now: float) -> None:
        seconds = -math.expm1(-(now - start) / self.half_life * math.log(2.0)) * self.half_life / math.log(2.0)
        self.used[user] = self.used.get(user, 0.0) + units * seconds / self.decay(now)

    def move(self, reference: float, half_life: float) -> None:
        decay = self.decay(reference)
        kept = sorted(((used * decay, user) for user, used in self.used.items()), reverse=True)[:_USERS_MAX]
        self.used = {user: used for used, user in kept if used >= _USED_MIN}
        self.reference, self.half_life = reference, half_life


class UsageHistory:
    """Adds up who holds what, pass by pass; persists as a JSON document."""

    def __init__(self) -> None:
        self._projects: dict[str, _Project] = {}
        self._noted_at: float | None = None

    def note(self, jobs: Iterable[Job], now: float, policy: Policy) -> Mapping[str, Mapping[str, float]]:
        """Record what is held now and return `Snapshot.user_usage`.

        Jobs that hold something now are charged since the last note, or since their attempt started if that is later. A
        job that ended in between is not charged for that time. A clock that went back charges nothing.
        """
        since = 0.0 if self._noted_at is None else self._noted_at
        for job in jobs:
            units = 0 if job.status is JobStatus.PENDING else sum(job.charged.values())
            start = max(since, job.started_at or now)
            if units and start < now:
                self._project(job.project_id, now, policy).add(job.user_id, units, start, now)
        self._noted_at = now
        usage = {name: self._usage(self._project(name, now, policy), now) for name in sorted(self._projects)}
        self._projects = {name: project for name, project in self._projects.items() if usage[name]}
        return {name: users for name, users in usage.items() if users}

    def to_document(self) -> dict[str, Any]:
        """The JSON document; empty before the first `note`."""
        at = self._noted_at
        if at is None:
            return {}
        return {
            "at": at,
            "projects": {
                name: {user: round(used, 1) for user, used in sorted(usage.items())}
                for name, project in sorted(self._projects.items())
                if (usage := self._usage(project, at))
            },
        }

    def restore(self, document: object) -> None:
        """Continue from `to_document`; malformed parts are ignored.

        Jobs that hold something at the next note are charged for the time in between.
        """
        if not isinstance(document, dict) or not isinstance(document.get("projects"), dict):
            return
        at = _number(document.get("at"))
        if at is None:
            return
        self._projects, self._noted_at = {}, at
        for name, users in document["projects"].items():
            amounts = users.items() if isinstance(users, dict) else ()
            used = {str(user): amount for user, raw in amounts if (amount := _number(raw)) is not None}
            # The next note sets the half-life from the quota file.
            self._projects[str(name)] = _Project(half_life=math.inf, reference=at, used=used)

    def _project(self, name: str, now: float, policy: Policy) -> _Project:
        half_life = policy.rules(name).half_life_seconds
        project = self._projects.get(name)
        if project is None:
            project = self._projects[name] = _Project(half_life=half_life, reference=now)
        if math.isinf(project.half_life):
            project.half_life = half_life
        if project.reference > now:  # written by a wrong clock
            project.reference = now
        age = now - project.reference
        if project.half_life != half_life or age > _REFERENCE_HALF_LIVES * half_life:
            project.move(now, half_life)
        return project

    def _usage(self, project: _Project, now: float) -> dict[str, float]:
        decay = 1.0 if math.isinf(project.half_life) else project.decay(max(now, project.reference))
        return {user: used * decay for user, used in project.used.items() if used * decay >= _USED_MIN}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
