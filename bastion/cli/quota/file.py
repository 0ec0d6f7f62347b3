"""Quota files on the command line: read one, and show its problems or meaning."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import Refused
from quota import Policy, QuotaFileError
from quota.describe_rules import rule_values
from quota.reading import FILE_MAX_BYTES


def read(path: str) -> bytes:
    """Read the file; `-` means stdin. Raises Refused.

    Reads one byte beyond the maximum, so that `load` refuses a larger file.
    """
    try:
        if path == "-":
            return sys.stdin.buffer.read(FILE_MAX_BYTES + 1)
        with Path(path).open("rb") as file:
            return file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read the quota file {plain(path)}: {error.strerror}") from error


def tell_problems(path: str, error: QuotaFileError, *, json: bool) -> None:
    for problem in error.problems:
        say(f"bastion: {plain(path)}: {plain(problem)}")
    if json:
        problems = [{"line": problem.line, "message": problem.message} for problem in error.problems]
        emit_json({"valid": False, "problems": problems})


def tell_warnings(path: str, policy: Policy) -> None:
    for warning in policy.warnings:
        say(f"bastion: {plain(path)}: warning: {plain(warning)}")


def document(policy: Policy) -> dict[str, Any]:
    return {
        "valid": True,
        "tiers": [dict(tier) for tier in policy.tiers],
        "projects": {
            project: {
                "entitlement": {
                    resource_type: policy.entitlement(project, resource_type) for resource_type in policy.resource_types
                },
                "members": list(policy.members.get(project, ())),
            }
            for project in policy.projects
        },
        "rules": {
            "default": rule_values(policy.default_rules),
            "projects": {project: rule_values(rules) for project, rules in sorted(policy.project_rules.items())},
        },
        "admins": {
            "bastion": list(policy.admins.bastion),
            "projects": {project: list(users) for project, users in sorted(policy.admins.projects.items())},
        },
        "warnings": [{"line": warning.line, "message": warning.message} for warning in policy.warnings],
    }
