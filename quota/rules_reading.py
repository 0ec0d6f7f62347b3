"""Reads `[project_rules]`: default rules, and tables of single projects that override them key by key.

A misspelled key is a problem, because its author relies on it. Other unknown keys are warnings, because a newer version
may know them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from quota.members import USER_ID_MAX_CHARS
from quota.messages import Guesses, shown
from quota.names import AMOUNT_MAX, PLAIN_NAME, PLAIN_NAME_RULE
from quota.rules import DEFAULT_RULES, ProjectRules

TABLE = "project_rules"

_HOUR = 3600.0
_TEN_YEARS = 87_600
# Per key: the attribute, the unit in seconds, the minimum and the maximum.
_DURATIONS: Mapping[str, tuple[str, float, float, float]] = {
    "half_life_hours": ("half_life_seconds", _HOUR, 0.01, _TEN_YEARS),
    "minimum_runtime_minutes": ("minimum_runtime_seconds", 60.0, 0, 7 * 24 * 60),
    "keep_idle_seconds": ("keep_idle_seconds", 1.0, 0, 3600),
    "grace_seconds": ("grace_seconds", 1.0, 0, 3600),
    "maximum_runtime_hours": ("maximum_runtime_seconds", _HOUR, 0, _TEN_YEARS),
}
_SWITCHES = ("fifo", "hold", "allow_bastion_jobs", "allow_root")
_COUNTS = ("max_queued_jobs", "max_queued_jobs_per_user")
COUNT_LEAST, COUNT_MOST = 1, 100_000
_PRIORITY = "highest_priority"
PRIORITY_LEAST, PRIORITY_MOST = 1, 5
_INSTANCE_TYPES = "instance_types"
# Longer lists belong into one pattern.
INSTANCE_TYPES_MOST = 100
_INSTANCE_TYPE = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}\*?")
_LIMITS = ("borrowing_limit", "lending_limit")
_USER_WEIGHTS = "user_weights"
USER_WEIGHT_LEAST, USER_WEIGHT_MOST = 0.001, 1000
# A newer version's key is rarely this similar to a known one.
_MISSPELT = 0.65

_VALUE_KEYS = (*_DURATIONS, *_SWITCHES, *_COUNTS, _PRIORITY, _INSTANCE_TYPES)
_TABLE_KEYS = (*_LIMITS, _USER_WEIGHTS)
KEYS = (*_VALUE_KEYS, *_TABLE_KEYS)


class Findings(Protocol):
    """Collects problems and warnings; the path leads to the line."""

    @property
    def guesses(self) -> Guesses: ...

    def problem(self, message: str, *path: str | int) -> None: ...
    def warning(self, message: str, *path: str | int) -> None: ...


class RulesReader:
    """One file's rules: the default, and the complete rules of projects that differ."""

    def __init__(
        self, document: Mapping[str, Any], resource_types: set[str], projects: set[str], findings: Findings
    ) -> None:
        self.default = DEFAULT_RULES
        self.projects: dict[str, ProjectRules] = {}
        self._resource_types = resource_types
        self._known = projects
        self._findings = findings
        table = document.get(TABLE, {})
        if not isinstance(table, dict):
            findings.problem(f"[{TABLE}] must be a table, not {shown(table)}", TABLE)
            return
        own = {name: value for name, value in table.items() if self._is_project(name, value)}
        common = {name: value for name, value in table.items() if name not in own}
        self.default = self._rules(common, DEFAULT_RULES, TABLE)
        ordered = sorted(projects)
        for project, value in own.items():
            rules = self._rules(value, self.default, TABLE, project)
            if project in projects:
                if rules != self.default:
                    self.projects[project] = rules
            else:
                near = findings.guesses.question(project, ordered) or "; delete them or add the project"
                findings.warning(
                    f"there are rules for {shown(project)}, which is not a project in this file{near}", TABLE, project
                )

    def _is_project(self, name: str, value: object) -> bool:
        """Whether an entry is a project's table, not a default rule."""
        if not isinstance(value, dict) or name in _TABLE_KEYS:
            return False
        if name in self._known:
            return True
        if name in _VALUE_KEYS or self._findings.guesses.meant(name, _TABLE_KEYS, cutoff=_MISSPELT):
            return False
        if not PLAIN_NAME.fullmatch(name):
            self._findings.problem(f"{shown(name)} is not a valid project id; {PLAIN_NAME_RULE}", TABLE, name)
        return True

    def _rules(self, table: Mapping[str, Any], base: ProjectRules, *path: str) -> ProjectRules:
        changes: dict[str, object] = {}
        for key, value in table.items():
            if key in _DURATIONS:
                attribute, unit, least, most = _DURATIONS[key]
                seconds = self._number(value, least, most, *path, key) * unit
                changes[attribute] = None if key == "maximum_runtime_hours" and not seconds else seconds
            elif key in _SWITCHES:
                if not isinstance(value, bool):
                    self._problem(f"is {shown(value)}; write true or false", *path, key)
                changes[key] = value is True
            elif key in _COUNTS:
                changes[key] = self._whole(value, COUNT_LEAST, COUNT_MOST, *path, key)
            elif key == _PRIORITY:
                changes[key] = self._whole(value, PRIORITY_LEAST, PRIORITY_MOST, *path, key)
            elif key == _INSTANCE_TYPES:
                changes[key] = self._instance_types(value, *path, key)
            elif key in _LIMITS:
                changes[key] = self._limits(value, *path, key)
            elif key == _USER_WEIGHTS:
                changes[key] = self._user_weights(value, *path, key)
            else:
                self._unknown(key, value, *path)
        return base.evolve(**changes)

    def _problem(self, message: str, *path: str) -> None:
        *table, key = path
        self._findings.problem(f"{key} in [{'.'.join(table)}] {message}", *path)

    def _unknown(self, key: str, value: object, *path: str) -> None:
        without_unit = next((known for known in KEYS if known.startswith(f"{key}_")), None)
        near = without_unit or self._findings.guesses.meant(key, KEYS, cutoff=_MISSPELT)
        if near is not None:
            self._problem(f"is not a valid rule; did you mean {near}?", *path, key)
        elif len(path) == 1 and key in self._known:
            self._problem(f"is {shown(value)}; write the project's rules as a table [{TABLE}.{key}]", *path, key)
        else:
            self._findings.warning(
                f"unknown rule {shown(key)} in [{'.'.join(path)}]; this version ignores it", *path, key
            )

    def _number(self, value: object, least: float, most: float, *path: str) -> float:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and least <= value <= most:
            return float(value)
        self._problem(f"is {shown(value)}; write a number from {least:g} to {most:g}", *path)
        return least

    def _whole(self, value: object, least: int, most: int, *path: str) -> int:
        if type(value) is int and least <= value <= most:
            return value
        self._problem(f"is {shown(value)}; write a whole number from {least} to {most}", *path)
        return least

    def _instance_types(self, value: object, *path: str) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > INSTANCE_TYPES_MOST:
            self._problem(
                f"is {shown(value)}; write a list of at most {INSTANCE_TYPES_MOST} names like "
                '["tpu-v4-32", "tpu-v5p-*"]',
                *path,
            )
            return ()
        for each in value:
            if not isinstance(each, str) or not _INSTANCE_TYPE.fullmatch(each):
                self._problem(
                    f"has {shown(each)}; write the name of an instance type, or its beginning and one * like "
                    '"tpu-v5p-*"',
                    *path,
                )
        return tuple(dict.fromkeys(each for each in value if isinstance(each, str)))

    def _table(self, value: object, example: str, *path: str) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self._problem(f"is {shown(value)}; write a table, like {path[-1]} = {{ {example} }}", *path)
        return {}

    def _limits(self, value: object, *path: str) -> dict[str, int]:
        limits: dict[str, int] = {}
        for resource, amount in self._table(value, f"{min(self._resource_types, default='v4')} = 64", *path).items():
            if resource not in self._resource_types:
                near = (
                    self._findings.guesses.question(resource, sorted(self._resource_types))
                    or "; add it there or delete it here"
                )
                title = f"{path[-1]} in [{'.'.join(path[:-1])}]"
                self._findings.warning(
                    f"{title} has {shown(resource)}, which is not in total_resources; it is ignored{near}",
                    *path,
                    resource,
                )
            elif type(amount) is not int or not 0 <= amount <= AMOUNT_MAX:
                self._problem(f"is {shown(amount)}; write a whole number from 0 to {AMOUNT_MAX}", *path, resource)
            else:
                limits[resource] = amount
        return limits

    def _user_weights(self, value: object, *path: str) -> dict[str, float]:
        weights: dict[str, float] = {}
        for user, weight in self._table(value, "alice = 2.0", *path).items():
            if isinstance(weight, dict):
                self._problem('is a table; quote a user id with dots, like "a.b@example.com" = 2.0', *path, user)
            elif not 0 < len(user) <= USER_ID_MAX_CHARS:
                self._findings.problem(
                    f"a user id in [{'.'.join(path)}] is {len(user)} characters long; write 1 to {USER_ID_MAX_CHARS}",
                    *path,
                    user,
                )
            else:
                weights[user] = self._number(weight, USER_WEIGHT_LEAST, USER_WEIGHT_MOST, *path, user)
        return weights
