"""Which jobs a command is about: by user, project, state, type, name, label, group."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bastion.client.jobs.results import Result
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.labels import match
from bastion.core.status.document import JobEntry, Phase

# What `--status` may say: the phases of live jobs, then how completed ones ended.
LIVE = tuple(phase.value for phase in Phase if phase is not Phase.COMPLETED)
SUBMITTED, INVALID = "submitted", "invalid"
ENDED = ("succeeded", "failed", "cancelled", "refused")
STATUSES = (SUBMITTED, *LIVE, INVALID, *ENDED)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Conditions that all hold; an empty one excludes nothing. Of several values of one, any may hold.

    Attributes:
        patterns: Names, or parts of them with `*`, `?` and `[...]`.
        labels: Values by key; None: any value.
    """

    users: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()
    statuses: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    group: str | None = None

    @property
    def is_all(self) -> bool:
        """Whether it selects every job."""
        return self == Selection()

    @property
    def reads_specs(self) -> bool:
        """Whether a job's name and state do not decide."""
        return bool(self.users or self.projects or self.types or self.labels or self.group is not None)

    @property
    def wants_ended(self) -> bool:
        """Whether only completed jobs are asked for, by their outcome."""
        return bool(self.statuses) and self.statuses <= set(ENDED)

    @cached_property
    def _names(self) -> re.Pattern[str]:
        return re.compile("|".join(map(fnmatch.translate, self.patterns)))

    def name(self, name: str) -> bool:
        return not self.patterns or self._names.match(name) is not None

    def status(self, *names: str) -> bool:
        return not self.statuses or not self.statuses.isdisjoint(names)

    def place(self, name: str, project_id: str, user_id: str, instance_type: object) -> bool:
        """Whether a live job may belong to it; decided before the rest of its entry is read."""
        return (
            self._is_in(project_id, self.projects)
            and self._is_in(user_id, self.users)
            and self._is_in(instance_type, self.types)
            and self.name(name)
        )

    def entry(self, entry: JobEntry) -> bool:
        return (
            self.place(entry.name, entry.project_id, entry.user_id, entry.instance_type)
            and self.status(entry.phase)
            and match(entry.labels or {}, self.labels)
            and self.group in (None, entry.group)
        )

    def spec(self, spec: JobSpec) -> bool:
        """Whether a job that is not accepted yet belongs to it."""
        return (
            self.place(spec.name, spec.project_id, spec.user_id, spec.instance_type or None)
            and self.status(SUBMITTED)
            and match(spec.labels, self.labels)
            and self.group in (None, spec.limits.group)
        )

    def result(self, result: Result) -> bool:
        return (
            self.place(result.name, result.project_id, result.user_id, result.instance_type)
            and self.status(result.outcome)
            and match(result.labels, self.labels)
            and self.group in (None, result.group)
        )

    @staticmethod
    def _is_in(value: object, wanted: frozenset[str]) -> bool:
        return not wanted or value in wanted
