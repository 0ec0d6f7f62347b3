"""The meaning of a quota file: members, entitlements and rules of each project. A `Policy` is an immutable value."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

from quota.admins import NO_ADMINS, Admins
from quota.members import Members
from quota.rules import DEFAULT_RULES, ProjectRules

# Cached answers: more than the users who have jobs at the same time.
_REMEMBERED_MAX = 32_768


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a quota file: its line (from 1; None if no line applies), and what to do."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line is not None else self.message


class QuotaFileError(ValueError):
    """The quota file cannot be used; the last good one stays in force.

    `problems`: all problems, by line. `line`: the first problem's line, or None.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        self.line = next((problem.line for problem in problems if problem.line is not None), None)
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A validated quota file.

    Attributes:
        tiers: Units of each resource type per tier; tier 0 is the best (reserved) capacity.
        weights: Per project and type; they need not sum to 1.
        members: Per project, regular expressions that match whole user ids.
        warnings: Likely mistakes that still have a meaning.
        default_rules: For projects without rules of their own.
        project_rules: The complete rules of projects that have their own.
        admins: Who may cancel and hold the jobs of others.
    """

    tiers: tuple[Mapping[str, int], ...]
    weights: Mapping[str, Mapping[str, float]]
    members: Mapping[str, tuple[str, ...]]
    warnings: tuple[Problem, ...] = ()
    default_rules: ProjectRules = DEFAULT_RULES
    project_rules: Mapping[str, ProjectRules] = field(default_factory=dict)
    admins: Admins = NO_ADMINS
    projects: tuple[str, ...] = field(init=False)
    resource_types: tuple[str, ...] = field(init=False)
    _totals: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _shares: Mapping[str, Mapping[str, Fraction]] = field(init=False, repr=False, compare=False)
    _entitlements: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)
    _withheld: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _is_member: Callable[[str, str], bool] = field(init=False, repr=False, compare=False)
    _projects_of: Callable[[str], tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        totals: dict[str, int] = {}
        for tier in self.tiers:
            for resource, amount in tier.items():
                totals[resource] = totals.get(resource, 0) + amount
        shares: dict[str, dict[str, Fraction]] = {project: {} for project in self.weights}
        for resource in totals:
            parts = {
                project: _exact(weights[resource]) for project, weights in self.weights.items() if resource in weights
            }
            whole = sum(parts.values(), Fraction(0))
            for project, part in parts.items():
                shares[project][resource] = part / whole if whole else Fraction(0)
        entitlements = {
            project: {resource: math.floor(share * totals[resource]) for resource, share in of_project.items()}
            for project, of_project in shares.items()
        }
        withheld = {
            resource: sum(
                self._own_only(project, resource, shares.get(resource, 0)) for project, shares in entitlements.items()
            )
            for resource in totals
        }
        groups = {project: Members(patterns) for project, patterns in sorted(self.members.items())}

        def is_member(user: str, project: str) -> bool:
            group = groups.get(project)
            return group is not None and group.has(user)

        def projects_of(user: str) -> tuple[str, ...]:
            return tuple(project for project, group in groups.items() if group.has(user))

        frozen: dict[str, object] = {
            "tiers": tuple(MappingProxyType(dict(tier)) for tier in self.tiers),
            "weights": _frozen(
                {project: MappingProxyType(dict(resource_types)) for project, resource_types in self.weights.items()}
            ),
            "members": _frozen({project: tuple(texts) for project, texts in self.members.items()}),
            "project_rules": _frozen(self.project_rules),
            "projects": tuple(sorted({*self.weights, *self.members})),
            "resource_types": tuple(sorted(totals)),
            "_totals": _frozen(totals),
            "_shares": _frozen(
                {project: MappingProxyType(resource_types) for project, resource_types in shares.items()}
            ),
            "_entitlements": _frozen(
                {project: MappingProxyType(resource_types) for project, resource_types in entitlements.items()}
            ),
            "_withheld": _frozen(withheld),
            # Pure, so answers are cached.
            "_is_member": functools.lru_cache(_REMEMBERED_MAX)(is_member),
            "_projects_of": functools.lru_cache(_REMEMBERED_MAX)(projects_of),
        }
        for name, value in frozen.items():
            object.__setattr__(self, name, value)

    def total(self, resource_type: str) -> int:
        """Units of the type in all tiers; 0 for an unknown type."""
        return self._totals.get(resource_type, 0)

    def entitlement(self, project: str, resource_type: str) -> int:
        """The project's guaranteed units: floor(weight / sum of all projects' weights x total).

        Exact on the decimals in the file: 0.6 of 1000 is 600, never 599. Without a weight it is 0.
        """
        return self._entitlements.get(project, {}).get(resource_type, 0)

    def share(self, project: str, resource_type: str) -> Fraction:
        """The project's weight as a part of the sum of all projects' weights; 0 without a weight."""
        return self._shares.get(project, {}).get(resource_type, Fraction(0))

    def ceiling(self, project: str, resource_type: str) -> int:
        """The most units that the project may ever hold in an empty pool.

        At most the pool without what other projects do not lend; at most its entitlement plus its borrowing limit.
        """
        own = self.entitlement(project, resource_type)
        others = self._withheld.get(resource_type, 0) - self._own_only(project, resource_type, own)
        most = self.total(resource_type) - others
        limit = self.rules(project).borrowing_limit.get(resource_type)
        return most if limit is None else min(most, own + limit)

    def _own_only(self, project: str, resource_type: str, entitlement: int) -> int:
        limit = self.rules(project).lending_limit.get(resource_type)
        return 0 if limit is None else max(0, entitlement - limit)

    def rules(self, project: str) -> ProjectRules:
        return self.project_rules.get(project, self.default_rules)

    def is_member(self, user: str, project: str) -> bool:
        """Whether a pattern of the project matches the whole user id; ids over 128 characters match none."""
        return self._is_member(user, project)

    def projects_of(self, user: str) -> tuple[str, ...]:
        return self._projects_of(user)


def _exact(weight: float) -> Fraction:
    """The decimal in the file: `repr` of a float is the shortest decimal that reads back as the same float."""
    return Fraction(repr(weight))


def _frozen(mapping: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(mapping))
