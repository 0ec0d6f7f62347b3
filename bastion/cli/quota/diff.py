"""`bastion quota diff OLD NEW`: what changes from one quota file to another, as text or JSON."""

from __future__ import annotations

from typing import Any

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain
from bastion.cli.quota import file as quota_file
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import Policy, QuotaFileError, load
from quota.describe_rules import RuleValue
from quota.diff import AmountChange, Difference, RuleChange, describe, difference


def _run(call: Invocation) -> int:
    if call.operands == ("-", "-"):
        raise Refused("only one of the two files can be - (stdin)")
    before, after = (_load(path, json=call.json) for path in call.operands)
    if before is None or after is None:
        return EXIT_REFUSED
    found = difference(before, after)
    if call.json:
        emit_json(document(found))
    else:
        show(found)
    return 0


def _load(path: str, *, json: bool) -> Policy | None:
    try:
        return load(quota_file.read(path))
    except QuotaFileError as error:
        quota_file.tell_problems(path, error, json=json)
        return None


def show(found: Difference) -> None:
    for line in describe(found):
        print(plain(line))


def document(found: Difference) -> dict[str, Any]:
    return {
        "changes": bool(found),
        "types_added": list(found.types_added),
        "types_removed": list(found.types_removed),
        "tiers": [{"tier": number, "amounts": _amounts(changes)} for number, changes in found.tiers],
        "totals": _amounts(found.totals),
        "projects": {
            change.project: {
                "existed": change.existed,
                "exists": change.exists,
                "entitlements": _amounts(change.entitlements),
                "members_added": list(change.members_added),
                "members_removed": list(change.members_removed),
                "rules": _rules(change.rules),
            }
            for change in found.projects
        },
        "rules": _rules(found.rules),
        "admins": [
            {"project": each.project or None, "added": list(each.added), "removed": list(each.removed)}
            for each in found.admins
        ],
    }


def _amounts(changes: tuple[AmountChange, ...]) -> dict[str, dict[str, int]]:
    return {change.resource_type: {"before": change.before, "after": change.after} for change in changes}


def _rules(changes: tuple[RuleChange, ...]) -> dict[str, dict[str, RuleValue]]:
    return {change.key: {"before": change.before, "after": change.after} for change in changes}


DIFF = Command(
    summary="Shows what changes from one quota file to another.",
    usage="OLD NEW [--output=json]",
    details="""Compares pool, projects, shares in units, members and rules, losses first. Order, comments and a common
        factor of the weights make no difference. Either file may be - for stdin. To see what a new file would do to the
        jobs of a bastion, use bastion quota upload FILE --dry_run.""",
    examples=("bastion quota diff project-quotas.config new.config",),
    operands=(2, 2),
    takes_target=False,
    takes_output=True,
    run=_run,
)
