"""The semantic difference between two quota files. Order, comments and weights in the same ratio do not count.

Invariants: `difference(a, a)` is empty; `difference(b, a)` is `difference(a, b)` with before and after exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quota.admins import Admins
from quota.describe_rules import RuleValue, format_value, rule_label, rule_value, rule_values
from quota.policy import Policy
from quota.rules import ProjectRules
from quota.rules_reading import KEYS

# At most a screen of projects and a line of members.
PROJECTS_SHOWN = 30
MEMBERS_SHOWN = 8
RULES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountChange:
    resource_type: str
    before: int
    after: int

    @property
    def gain(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """A rule's change, by its key (`borrowing_limit.v4`); None: no limit."""

    key: str
    before: RuleValue
    after: RuleValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectChange:
    """What changes for one project.

    Attributes:
        existed, exists: Whether the file before, and the one after, has it.
        entitlements: By resource type, sorted.
        members_added, members_removed: Patterns, sorted.
        rules: In the file's order, without changes of the default rules. A project in only one file is compared with
            the default rules of the other.
    """

    project: str
    existed: bool
    exists: bool
    entitlements: tuple[AmountChange, ...]
    members_added: tuple[str, ...]
    members_removed: tuple[str, ...]
    rules: tuple[RuleChange, ...] = ()

    @property
    def loses(self) -> bool:
        return not self.exists or any(change.gain < 0 for change in self.entitlements)

    @property
    def gains(self) -> bool:
        return not self.existed or any(change.gain > 0 for change in self.entitlements)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminChange:
    """What changes for the admins of a project, or of the bastion (`project` is empty)."""

    project: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """From one policy to another; everything sorted.

    `tiers`: number and changes of each changed tier. `totals`: over all tiers. `rules`: the default rules.
    """

    types_added: tuple[str, ...]
    types_removed: tuple[str, ...]
    tiers: tuple[tuple[int, tuple[AmountChange, ...]], ...]
    totals: tuple[AmountChange, ...]
    projects: tuple[ProjectChange, ...]
    rules: tuple[RuleChange, ...] = ()
    admins: tuple[AdminChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.types_added or self.types_removed or self.tiers or self.projects or self.rules or self.admins)


def difference(before: Policy, after: Policy) -> Difference:
    resource_types = sorted({*before.resource_types, *after.resource_types})
    tiers = []
    for number in range(max(len(before.tiers), len(after.tiers))):
        one = before.tiers[number] if number < len(before.tiers) else {}
        other = after.tiers[number] if number < len(after.tiers) else {}
        changes = _changes((resource, one.get(resource, 0), other.get(resource, 0)) for resource in resource_types)
        if changes:
            tiers.append((number, changes))
    rules = _rule_changes(before.default_rules, after.default_rules)
    projects = (
        _project(project, before, after, resource_types, rules)
        for project in sorted({*before.projects, *after.projects})
    )
    return Difference(
        types_added=tuple(resource for resource in resource_types if resource not in before.resource_types),
        types_removed=tuple(resource for resource in resource_types if resource not in after.resource_types),
        tiers=tuple(tiers),
        totals=_changes((resource, before.total(resource), after.total(resource)) for resource in resource_types),
        projects=tuple(project for project in projects if project is not None),
        rules=rules,
        admins=tuple(_admin_changes(before.admins, after.admins)),
    )


def _admin_changes(before: Admins, after: Admins) -> Iterator[AdminChange]:
    for project in ("", *sorted({*before.projects, *after.projects})):
        one = set(before.projects.get(project, ()) if project else before.bastion)
        other = set(after.projects.get(project, ()) if project else after.bastion)
        if one != other:
            yield AdminChange(project=project, added=tuple(sorted(other - one)), removed=tuple(sorted(one - other)))


def _rule_changes(before: ProjectRules, after: ProjectRules) -> tuple[RuleChange, ...]:
    one, other = rule_values(before), rule_values(after)
    # Group limits and weights by rule.
    keys = sorted({*one, *other}, key=lambda key: (KEYS.index(key.partition(".")[0]), key))
    changes = (RuleChange(key=key, before=rule_value(one, key), after=rule_value(other, key)) for key in keys)
    return tuple(change for change in changes if change.before != change.after)


def _changes(amounts: Iterator[tuple[str, int, int]]) -> tuple[AmountChange, ...]:
    return tuple(
        AmountChange(resource_type=resource, before=one, after=other)
        for resource, one, other in amounts
        if one != other
    )


def _project(
    project: str, before: Policy, after: Policy, resource_types: list[str], common: tuple[RuleChange, ...]
) -> ProjectChange | None:
    members_before = set(before.members.get(project, ()))
    members_after = set(after.members.get(project, ()))
    existed, exists = project in before.projects, project in after.projects
    rules = _rule_changes(
        before.rules(project) if existed else after.default_rules,
        after.rules(project) if exists else before.default_rules,
    )
    change = ProjectChange(
        project=project,
        existed=existed,
        exists=exists,
        entitlements=_changes(
            (resource, before.entitlement(project, resource), after.entitlement(project, resource))
            for resource in resource_types
        ),
        members_added=tuple(sorted(members_after - members_before)),
        members_removed=tuple(sorted(members_before - members_after)),
        rules=tuple(rule for rule in rules if not (existed and exists and rule in common)),
    )
    same = existed == exists and not (
        change.entitlements or change.members_added or change.members_removed or change.rules
    )
    return None if same else change


def describe(found: Difference, *, projects_shown: int = PROJECTS_SHOWN) -> Iterator[str]:
    """The difference as lines of text; projects that lose something come first, at most `projects_shown`."""
    if not found:
        yield "no changes: both files have the same meaning"
        return
    if found.types_added or found.types_removed or found.tiers:
        yield "Pool"
        for resource in found.types_removed:
            yield f"  resource type {resource} is removed"
        for resource in found.types_added:
            yield f"  resource type {resource} is new"
        several = any(number > 0 for number, _ in found.tiers)
        for number, changes in found.tiers:
            for change in changes:
                yield f"  {f'tier {number}: ' if several else ''}{_amount(change)}"
        if several:
            for change in found.totals:
                yield f"  all tiers: {_amount(change)}"
    if found.rules:
        yield "Default project rules"
        yield from _rule_lines(found.rules, "  ")
    if found.admins:
        yield "Admins"
        for each in found.admins:
            whose = f"project {each.project}" if each.project else "the bastion"
            if each.removed:
                yield f"  of {whose} removed: {_some(each.removed)}"
            if each.added:
                yield f"  of {whose} added: {_some(each.added)}"
    if found.projects:
        yield "Projects and entitlements"
        # Projects that lose something must not be cut off.
        order = sorted(found.projects, key=lambda change: (not change.loses, not change.gains, change.project))
        for project in order[:projects_shown]:
            yield from _project_lines(project)
        others = order[projects_shown:]
        if others:
            losing = sum(change.loses for change in others)
            yield f"  and {_more(others, 'project')}" + (
                f"; {losing} of them {'loses' if losing == 1 else 'lose'} something" if losing else ""
            )


def _amount(change: AmountChange) -> str:
    return f"{change.resource_type} {change.before} -> {change.after} ({change.gain:+d})"


def _project_lines(change: ProjectChange) -> Iterator[str]:
    shares = "; ".join(_amount(entitlement) for entitlement in change.entitlements)
    if not change.exists:
        yield f"  {change.project} is removed" + (f": {shares}" if shares else "")
        return
    if not change.existed:
        yield f"  {change.project} is new: {shares or 'can only borrow'}"
    else:
        yield f"  {change.project}" + (f": {shares}" if shares else "")
    if change.members_removed:
        yield f"    members removed: {_some(change.members_removed)}"
    if change.members_added:
        yield f"    members added: {_some(change.members_added)}"
    yield from _rule_lines(change.rules, "    ")


def _rule_lines(rules: tuple[RuleChange, ...], indent: str) -> Iterator[str]:
    for rule in rules[:RULES_SHOWN]:
        before, after = (format_value(rule.key, value) for value in (rule.before, rule.after))
        yield f"{indent}{rule_label(rule.key)} {before} -> {after}"
    if len(rules) > RULES_SHOWN:
        yield f"{indent}and {_more(rules[RULES_SHOWN:], 'rule')}"


def _more(hidden: Sequence[object], noun: str) -> str:
    return f"{len(hidden)} more {noun}" + ("" if len(hidden) == 1 else "s")


def _some(patterns: tuple[str, ...]) -> str:
    shown = ", ".join(patterns[:MEMBERS_SHOWN])
    return shown if len(patterns) <= MEMBERS_SHOWN else f"{shown} and {len(patterns) - MEMBERS_SHOWN} more"
