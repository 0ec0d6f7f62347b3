"""A policy in words and numbers, as `bastion quota check FILE` prints it.

Layer: `quota`, pure. Equal policies give equal text.
"""

from __future__ import annotations

from collections.abc import Sequence

from quota.policy import Policy
from quota.rules import DEFAULT_RULES, ProjectRules
from quota.rules_in_words import in_words, name_of, value_of, written


def render_check(policy: Policy) -> str:
    """Totals per tier, each project's entitlement and members, unusual rules, and warnings; ends in a newline."""
    kinds = policy.resource_types
    totals = [[f"tier {index}", *(str(tier.get(kind, 0)) for kind in kinds)] for index, tier in enumerate(policy.tiers)]
    if len(totals) > 1:
        totals.append(["total", *(str(policy.total(kind)) for kind in kinds)])
    projects = [
        [
            project,
            *(str(policy.entitlement(project, kind)) for kind in kinds),
            ", ".join(policy.members.get(project, ())) or "(nobody)",
        ]
        for project in policy.projects
    ]
    paragraphs = [
        "Total resources\n" + _table(["", *kinds], totals),
        "Entitlements\n" + _table(["project", *kinds, "members"], projects) if projects else "There are no projects.\n",
    ]
    rules = [_rules("all projects", policy.default_rules, DEFAULT_RULES)]
    rules += [_rules(project, own, policy.default_rules) for project, own in sorted(policy.project_rules.items())]
    if any(rules):
        paragraphs.append("Rules\n" + "".join(rules))
    if policy.warnings:
        paragraphs.append("Warnings\n" + "".join(f"  {warning}\n" for warning in policy.warnings))
    return "\n".join(paragraphs)


def _rules(whose: str, rules: ProjectRules, usual: ProjectRules) -> str:
    """What is not as usual; empty if all is."""
    now, before = written(rules), written(usual)
    told = [
        f"    {name_of(key)} {in_words(key, value_of(now, key))}\n"
        for key in dict.fromkeys((*now, *before))
        if value_of(now, key) != value_of(before, key)
    ]
    return f"  {whose}\n{''.join(told)}" if told else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart; numbers to the right, the first and a column of members to the left."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column == 0 or header[column] == "members" else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(f"  {'  '.join(cells).rstrip()}\n")
    return "".join(lines)
