"""The table of identities that the endpoint gets at its start: tokens, groups, custom roles, rights on the project.

[tokens]
alice-token = "user:alice@example.com"

[groups]
"group:tpu-users@example.com" = ["user:alice@example.com"]

[roles]
"projects/my-project/roles/bastionReader" = ["storage.objects.get", "storage.objects.list"]

[project]
"roles/storage.admin" = ["user:owner@example.com"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli

from bastion.core.errors import Refused
from bastion.emulators.gcs.iam.policies import EVERYBODY, EVERYBODY_WITH_AN_ACCOUNT, Binding
from bastion.emulators.gcs.iam.roles import PREDEFINED

_TABLES = ("tokens", "groups", "roles", "project")

ANONYMOUS = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Principals are written as in policies: `user:`, `serviceAccount:`, `principal://`.

    Attributes:
        tokens: Access tokens and their principals.
        groups: Members that stand for several principals (`group:`, `principalSet://`, `projectEditor:`).
        roles: Custom roles and their permissions.
        project: Bindings on the project, which hold for every bucket.
    """

    tokens: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    project: tuple[Binding, ...] = ()

    def permissions_of(self, role: str) -> frozenset[str]:
        return PREDEFINED.get(role) or self.roles.get(role, frozenset())

    def knows_role(self, role: str) -> bool:
        return role in PREDEFINED or role in self.roles

    def is_member(self, principal: str, member: str) -> bool:
        """Whether a member of a binding stands for a principal, or for anonymous callers ("")."""
        if member == EVERYBODY:
            return True
        if not principal:
            return False
        if member.startswith("domain:"):
            return principal.endswith(f"@{member.removeprefix('domain:')}")
        return member in (principal, EVERYBODY_WITH_AN_ACCOUNT) or principal in self.groups.get(member, ())


def read(path: Path) -> Identities:
    """Read the table. Raises Refused."""
    try:
        document = tomli.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Refused(f"cannot read the identities in {path}: {error.strerror}; check --identities") from error
    except ValueError as error:
        raise Refused(f"{path} is not a valid TOML file: {error}") from error
    unknown = sorted(document.keys() - set(_TABLES))
    if unknown:
        raise Refused(f"{path}: unknown table [{unknown[0]}]; the tables are {', '.join(_TABLES)}")
    tokens = _table(document, "tokens", path)
    for token, principal in tokens.items():
        if not isinstance(principal, str) or ":" not in principal:
            raise Refused(f"{path}: the token {token[:8]}... needs a principal such as user:alice@example.com")
    return Identities(
        tokens=tokens,
        groups={name: frozenset(texts) for name, texts in _lists(document, "groups", path).items()},
        roles={name: frozenset(texts) for name, texts in _lists(document, "roles", path).items()},
        project=tuple(
            Binding(role=role, members=tuple(members)) for role, members in _lists(document, "project", path).items()
        ),
    )


def _table(document: dict[str, object], name: str, path: Path) -> dict[str, str]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise Refused(f"{path}: [{name}] must be a table")
    return table


def _lists(document: dict[str, object], name: str, path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in _table(document, name, path).items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Refused(f"{path}: {key} in [{name}] must be a list of texts")
        found[key] = value
    return found
