"""Reads `[admins]`: who may cancel and hold the jobs of others, by literal user ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from quota.members import USER_ID_MAX_CHARS
from quota.messages import shown
from quota.names import PLAIN_NAME, PLAIN_NAME_RULE
from quota.rules_reading import Findings

TABLE = "admins"
_BASTION, _PROJECTS = "bastion", "projects"
_KEYS = (_BASTION, _PROJECTS)
_EXAMPLE = '["alice", "bob@example.com"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Admins:
    """User ids, sorted.

    Attributes:
        bastion: Admins of all projects.
        projects: Admins of one project each.
    """

    bastion: tuple[str, ...] = ()
    projects: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def has(self, user: str, project: str) -> bool:
        """Whether the user is an admin of the project."""
        return user in self.bastion or user in self.projects.get(project, ())


NO_ADMINS = Admins()


def read_admins(document: Mapping[str, Any], projects: set[str], findings: Findings) -> Admins:
    """The admins of a file; problems and warnings go to `findings`."""
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        findings.problem(f"[{TABLE}] must be a table, not {shown(table)}", TABLE)
        return NO_ADMINS
    for key in table:
        if key not in _KEYS:
            findings.problem(
                f"{shown(key)} is not valid in [{TABLE}]; write {_BASTION} = {_EXAMPLE}, or a project in "
                f"[{TABLE}.{_PROJECTS}]",
                TABLE,
                key,
            )
    of_projects = table.get(_PROJECTS, {})
    if not isinstance(of_projects, dict):
        findings.problem(f"{_PROJECTS} in [{TABLE}] must be a table, not {shown(of_projects)}", TABLE, _PROJECTS)
        of_projects = {}
    found = {}
    for project, users in of_projects.items():
        if not PLAIN_NAME.fullmatch(project):
            findings.problem(
                f"{shown(project)} is not a valid project id; {PLAIN_NAME_RULE}", TABLE, _PROJECTS, project
            )
        elif project not in projects:
            near = findings.guesses.question(project, sorted(projects)) or "; delete them or add the project"
            findings.warning(
                f"there are admins of {shown(project)}, which is not a project in this file{near}",
                *(TABLE, _PROJECTS, project),
            )
        found[project] = _users(users, findings, TABLE, _PROJECTS, project)
    bastion = _users(table.get(_BASTION, []), findings, TABLE, _BASTION)
    return Admins(bastion=bastion, projects=MappingProxyType(found))


def _users(value: object, findings: Findings, *path: str) -> tuple[str, ...]:
    title = f"{path[-1]} in [{'.'.join(path[:-1])}]"
    if not isinstance(value, list):
        findings.problem(f"{title} is {shown(value)}; write a list like {_EXAMPLE}", *path)
        return ()
    users = set()
    for index, user in enumerate(value):
        if not isinstance(user, str) or not 0 < len(user) <= USER_ID_MAX_CHARS:
            findings.problem(
                f"{title} has {shown(user)}; write a user id of 1 to {USER_ID_MAX_CHARS} characters, not a pattern",
                *path,
                index,
            )
        else:
            users.add(user)
    return tuple(sorted(users))
