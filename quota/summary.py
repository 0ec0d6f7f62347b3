"""A policy as text, as `bastion quota check FILE` prints it. Equal policies give equal text."""

from __future__ import annotations

from collections.abc import Sequence

from quota.describe_rules import format_value, rule_label, rule_value, rule_values
from quota.policy import Policy
from quota.rules import DEFAULT_RULES, ProjectRules


def render_check(policy: Policy) -> str:
    """Totals per tier, entitlements and members, unusual rules, and warnings; ends in a newline."""
    resource_types = policy.resource_types
    totals = [
        [f"tier {index}", *(str(tier.get(resource, 0)) for resource in resource_types)]
        for index, tier in enumerate(policy.tiers)
    ]
    if len(totals) > 1:
        totals.append(["total", *(str(policy.total(resource)) for resource in resource_types)])
    projects = [
        [
            project,
            *(str(policy.entitlement(project, resource)) for resource in resource_types),
            ", ".join(policy.members.get(project, ())) or "(none)",
        ]
        for project in policy.projects
    ]
    paragraphs = [
        "Total resources\n" + _table(["", *resource_types], totals),
        "Entitlements\n" + _table(["project", *resource_types, "members"], projects) if projects else "No projects\n",
    ]
    admins = [("the bastion", policy.admins.bastion), *sorted(policy.admins.projects.items())]
    if any(users for _, users in admins):
        paragraphs.append("Admins\n" + "".join(f"  {whose}: {', '.join(users)}\n" for whose, users in admins if users))
    rules = [_rules("all projects", policy.default_rules, DEFAULT_RULES)]
    rules += [_rules(project, own, policy.default_rules) for project, own in sorted(policy.project_rules.items())]
    if any(rules):
        paragraphs.append("Rules\n" + "".join(rules))
    if policy.warnings:
        paragraphs.append("Warnings\n" + "".join(f"  {warning}\n" for warning in policy.warnings))
    return "\n".join(paragraphs)


def _rules(whose: str, rules: ProjectRules, usual: ProjectRules) -> str:
    now, before = rule_values(rules), rule_values(usual)
    lines = [
        f"    {rule_label(key)} {format_value(key, rule_value(now, key))}\n"
        for key in dict.fromkeys((*now, *before))
        if rule_value(now, key) != rule_value(before, key)
    ]
    return f"  {whose}\n{''.join(lines)}" if lines else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column == 0 or header[column] == "members" else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells).rstrip()}\n")
    return "".join(lines)
