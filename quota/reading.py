"""Reads and checks a quota file.

Checks continue after a problem, so that one upload shows all of them. Unknown top-level tables are ignored (a newer
version may have added them) unless they look like a misspelled missing table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomli

from quota import admins, rules_reading
from quota.lines import Lines
from quota.members import FILE_COST_MAX, Members, UnsafePattern, check_pattern
from quota.messages import Guesses, shown
from quota.names import AMOUNT_MAX, PLAIN_NAME, PLAIN_NAME_RULE
from quota.policy import Policy, Problem, QuotaFileError
from quota.rules import ProjectRules
from quota.rules_reading import RulesReader

FILE_MAX_BYTES = 1024 * 1024
SCHEMA_VERSION = "1"
# Of problems and of warnings each, because they are published as an alarm.
FINDINGS_MAX = 200

# Python parses such a number but refuses to print it.
_LONG_NUMBER = re.compile(r"0[xob][0-9A-Fa-f_]{1000}")
_SYNTAX_LINE = re.compile(r" \(at line (\d+), column (\d+)\)\Z| \(at end of document\)\Z")
_TABLES = ("toml-schema", "total_resources", "project_membership", "project_resources")
_OPTIONAL_TABLES = (rules_reading.TABLE, admins.TABLE)
# For the check that users with a weight are members: a quarter of a second.
_USER_CHECKS_COST_MAX = 2_000_000


def load(data: bytes) -> Policy:
    """Read and check a quota file; raises QuotaFileError with every problem found."""
    text = _decode(data)
    document = _parse(text)
    reader = _Reader(document, Lines(text))
    policy = reader.policy()
    if policy is None:
        raise QuotaFileError(_sorted(reader.problems))
    return policy


def _refuse(line: int | None, message: str) -> QuotaFileError:
    return QuotaFileError((Problem(line, message),))


def _decode(data: bytes) -> str:
    if len(data) > FILE_MAX_BYTES:
        raise _refuse(None, f"the file is larger than {FILE_MAX_BYTES} bytes; use patterns for members")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refuse(line, "not valid UTF-8; save the file as UTF-8") from error
    text = text.removeprefix("\ufeff")  # some editors add it; TOML does not allow it
    if not text.strip():
        raise _refuse(None, "the file is empty; write at least [toml-schema], [total_resources] and the projects")
    return text


def _parse(text: str) -> dict[str, Any]:
    if _LONG_NUMBER.search(text):
        raise _refuse(None, f"a number is too long; the maximum amount is {AMOUNT_MAX}")
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        # Parser versions differ in attributes, but not in this suffix.
        message = str(error)
        place = _SYNTAX_LINE.search(message)
        if place is None:
            raise _refuse(None, f"not valid TOML: {message}") from error
        line = int(place[1]) if place[1] else text.rstrip("\n").count("\n") + 1
        column = f" (column {place[2]})" if place[2] else ""
        raise _refuse(line, f"not valid TOML: {message[: place.start()]}{column}; correct the syntax") from error
    except RecursionError as error:
        raise _refuse(None, "brackets or dotted keys nest too deeply; a quota file needs two levels") from error
    except ValueError as error:  # integers of over 4300 digits
        raise _refuse(None, f"a number is too long; the maximum amount is {AMOUNT_MAX}") from error


def _sorted(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    reported = sorted(problems[:FINDINGS_MAX], key=lambda problem: (problem.line or 0, problem.message))
    if len(problems) > FINDINGS_MAX:
        reported.append(Problem(None, f"more are not shown; correct these {FINDINGS_MAX} first"))
    return tuple(reported)


class _Reader:
    def __init__(self, document: Mapping[str, Any], lines: Lines) -> None:
        self._document = document
        self._lines = lines
        self.problems: list[Problem] = []
        self._warnings: list[Problem] = []
        self._pattern_cost = 0
        self.guesses = Guesses()

    def policy(self) -> Policy | None:
        missing = self._check_table_names()
        self._check_version("toml-schema" in missing)
        tiers = self._tiers()
        resource_types = {resource for tier in tiers for resource in tier}
        members = self._members()
        weights = self._weights(resource_types)
        rules = RulesReader(self._document, resource_types, {*members, *weights}, self)
        found_admins = admins.read_admins(self._document, {*members, *weights}, self)
        if self.problems:
            return None
        self._warn_about_projects(members, weights)
        self._warn_about_users(members, rules.projects)
        return Policy(
            tiers=tuple(tiers),
            weights=weights,
            members=members,
            warnings=_sorted(self._warnings),
            default_rules=rules.default,
            project_rules=rules.projects,
            admins=found_admins,
        )

    def problem(self, message: str, *path: str | int) -> None:
        self._add(self.problems, message, *path)

    def warning(self, message: str, *path: str | int) -> None:
        self._add(self._warnings, message, *path)

    def _add(self, found: list[Problem], message: str, *path: str | int) -> None:
        if len(found) <= FINDINGS_MAX:
            found.append(Problem(self._lines.of(*path), message))

    def _check_table_names(self) -> set[str]:
        missing = {name for name in _TABLES if name not in self._document}
        known = (*_TABLES, *_OPTIONAL_TABLES)
        explained: set[str] = set()
        for name in self._document:
            near = self.guesses.meant(name, known, cutoff=0.75)
            if name in known or near is None:
                continue
            message = f"[{name}] is not a valid table; did you mean [{near}]?"
            if near not in self._document:
                self.problem(message, name)
                explained.add(near)
            else:
                self.warning(f"{message} It is ignored.", name)
        for name in sorted(missing - explained):
            example = {
                "toml-schema": '; begin the file with [toml-schema] and version = "1"',
                "total_resources": "; add it with the units of each resource type, like v4 = 1024",
                "project_membership": '; add it with the members of each project, like project1 = ["user1"]',
                "project_resources": "; add [project_resources.<project>] tables with weights, like v4 = 0.6",
            }[name]
            self.problem(f"table [{name}] is missing{example}")
        return missing

    def _table(self, value: object, title: str, *path: str | int) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.problem(f"{title} must be a table, not {shown(value)}", *path)
        return {}

    def _check_version(self, missing: bool) -> None:
        if missing:
            return
        table = self._table(self._document["toml-schema"], "[toml-schema]", "toml-schema")
        version = table.get("version")
        if version != SCHEMA_VERSION and isinstance(self._document["toml-schema"], dict):
            found = "is missing" if version is None else f"is {shown(version)}"
            self.problem(
                f'the version in [toml-schema] {found}; write version = "{SCHEMA_VERSION}"',
                "toml-schema",
                "version",
            )

    def _tiers(self) -> list[dict[str, int]]:
        name = "total_resources"
        value = self._document.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            return [self._tier(value, name)]
        if not value:
            self.problem("total_resources is an empty list; write one table per tier, the best first", name)
        return [self._tier(tier, name, index) for index, tier in enumerate(value)]

    def _tier(self, value: object, *path: str | int) -> dict[str, int]:
        title = "[total_resources]" if len(path) == 1 else f"tier {path[1]} of total_resources"
        tier: dict[str, int] = {}
        for resource, amount in self._table(value, title, *path).items():
            if not PLAIN_NAME.fullmatch(resource):
                self.problem(f"{shown(resource)} is not a valid resource type; {PLAIN_NAME_RULE}", *path, resource)
            elif type(amount) is not int or not 0 <= amount <= AMOUNT_MAX:
                self.problem(
                    f"the amount of {resource} is {shown(amount)}; write a whole number from 0 to {AMOUNT_MAX}",
                    *path,
                    resource,
                )
            else:
                tier[resource] = amount
        return tier

    def _project(self, project: str, table: str) -> bool:
        if PLAIN_NAME.fullmatch(project):
            return True
        self.problem(f"{shown(project)} is not a valid project id; {PLAIN_NAME_RULE}", table, project)
        return False

    def _members(self) -> dict[str, tuple[str, ...]]:
        name = "project_membership"
        members: dict[str, tuple[str, ...]] = {}
        for project, patterns in self._table(self._document.get(name, {}), f"[{name}]", name).items():
            if not self._project(project, name):
                continue
            if not isinstance(patterns, list):
                self.problem(
                    f'the members of {project} are {shown(patterns)}; write a list like ["user1", "team-.*"]',
                    name,
                    project,
                )
                continue
            members[project] = tuple(
                pattern for index, pattern in enumerate(patterns) if self._pattern(pattern, name, project, index)
            )
        return members

    def _pattern(self, pattern: object, *path: str | int) -> bool:
        if not isinstance(pattern, str):
            self.problem(f'a member of {path[1]} is {shown(pattern)}; write a string like "user1"', *path)
            return False
        if self._pattern_cost > FILE_COST_MAX:
            return False  # the pattern before was already reported
        try:
            self._pattern_cost += check_pattern(pattern)
        except UnsafePattern as error:
            self.problem(f"invalid member of {path[1]}: {error}", *path)
            return False
        if self._pattern_cost > FILE_COST_MAX:
            self.problem(
                "the patterns up to this one take too long to match in total; use fewer or simpler ones, or list the "
                "users (user ids are not limited)",
                *path,
            )
            return False
        return True

    def _weights(self, resource_types: set[str]) -> dict[str, dict[str, float]]:
        name = "project_resources"
        weights: dict[str, dict[str, float]] = {}
        for project, table in self._table(self._document.get(name, {}), f"[{name}]", name).items():
            if not self._project(project, name):
                continue
            title = f"[{name}.{project}]"
            weights[project] = {}
            for resource, weight in self._table(table, title, name, project).items():
                if resource not in resource_types:
                    # A warning for a removed type, because a refused file would leave a new daemon without a quota.
                    near = self.guesses.question(resource, sorted(resource_types)) or "; add it there or delete it here"
                    self.warning(
                        f"{title} has {shown(resource)}, which is not in total_resources; it is ignored{near}",
                        *(name, project, resource),
                    )
                elif isinstance(weight, bool) or not isinstance(weight, (int, float)) or not weight >= 0:
                    self.problem(
                        f"the weight of {resource} in {title} is {shown(weight)}; write a number >= 0, like 0.6",
                        name,
                        project,
                        resource,
                    )
                elif weight > AMOUNT_MAX:
                    self.problem(
                        f"the weight of {resource} in {title} must be at most {AMOUNT_MAX}; only the ratio between "
                        "projects counts",
                        name,
                        project,
                        resource,
                    )
                else:
                    weights[project][resource] = float(weight)
        return weights

    def _warn_about_projects(self, members: Mapping[str, object], weights: Mapping[str, object]) -> None:
        without_weights = sorted(set(members) - set(weights))
        without_members = sorted(set(weights) - set(members))
        for project in weights:
            if project not in members:
                near = self.guesses.question(project, without_weights) or "; add it to [project_membership]"
                self.warning(f"project {project} has no members{near}", "project_resources", project)
            elif not members[project]:
                self.warning(f"project {project} has no members; add some, or delete it", "project_membership", project)
        for project in without_weights:
            near = self.guesses.question(project, without_members) or f"; add [project_resources.{project}]"
            self.warning(f"project {project} has no weights and can only borrow{near}", "project_membership", project)

    def _warn_about_users(self, members: Mapping[str, tuple[str, ...]], rules: Mapping[str, ProjectRules]) -> None:
        """Warn about users with a weight in a project they are not members of; default weights apply to any project."""
        cost_left = _USER_CHECKS_COST_MAX
        for project, own in rules.items():
            group = Members(members.get(project, ()))
            for user in own.user_weights:
                cost_left -= group.cost
                if cost_left < 0:
                    return
                if not group.has(user):
                    near = self.guesses.question(user, members.get(project, ()))
                    self.warning(
                        f"{shown(user)} has a weight in {project} but is not a member{near}",
                        *(rules_reading.TABLE, project, "user_weights", user),
                    )
