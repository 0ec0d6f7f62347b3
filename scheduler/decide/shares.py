"""What each project holds, against its entitlement.

Units of stopping jobs count against the pool (`capacity`), not against the project, so an owner can claim while its own
old job stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quota import Policy
from scheduler.decide.capacity import Amounts
from scheduler.model import NOTHING

# Whether it is entitled to nothing, and the fraction of its entitlement that it holds.
Rank = tuple[bool, float]
_NO_HOLDINGS: Mapping[str, Mapping[str, int]] = MappingProxyType({})


class Shares:
    """Units per project: held by running jobs, and promised to waiting jobs."""

    def __init__(self, policy: Policy, held: Mapping[str, Mapping[str, int]] = _NO_HOLDINGS) -> None:
        self._policy = policy
        self._entitled: dict[str, bool] = {}
        self._held = {project: dict(amounts) for project, amounts in held.items()}
        self._ordered: dict[str, dict[str, int]] = {}

    def hold(self, project: str, amounts: Amounts) -> None:
        _add(self._held, project, amounts, 1)

    def release(self, project: str, amounts: Amounts) -> None:
        _add(self._held, project, amounts, -1)

    def order(self, project: str, amounts: Amounts) -> None:
        _add(self._ordered, project, amounts, 1)

    def withdraw(self, project: str, amounts: Amounts) -> None:
        _add(self._ordered, project, amounts, -1)

    def entitlement(self, project: str, resource_type: str) -> int:
        return self._policy.entitlement(project, resource_type)

    def held(self, project: str, resource_type: str) -> int:
        return self._held.get(project, {}).get(resource_type, 0)

    def all_held(self, project: str) -> Mapping[str, int]:
        return self._held.get(project, NOTHING)

    def ordered(self, project: str, resource_type: str) -> int:
        return self._ordered.get(project, {}).get(resource_type, 0)

    def over(self, project: str, resource_type: str) -> int:
        """Units held beyond the entitlement; negative below it."""
        return self.held(project, resource_type) - self.entitlement(project, resource_type)

    def covers(self, project: str, amounts: Amounts, extra: Mapping[str, int] = NOTHING) -> bool:
        """Whether the project's entitlement covers `amounts` besides what it holds, is promised, and `extra`."""
        return all(
            amount + extra.get(resource, 0)
            <= self.entitlement(project, resource) - self.held(project, resource) - self.ordered(project, resource)
            for resource, amount in amounts
        )

    def holding(self, project: str, amounts: Amounts) -> str:
        """What the project uses with `amounts` more, as a suffix for a message."""
        parts = [
            f"{self.held(project, resource) + amount} {resource} (share {self.entitlement(project, resource)})"
            for resource, amount in amounts
        ]
        return f"; project {project} then uses {' and '.join(parts)}" if parts else ""

    def limit(self, project: str, resource_type: str) -> int | None:
        """The most units that its borrowing limit lets the project hold; None: no limit."""
        borrowing = self._policy.rules(project).borrowing_limit.get(resource_type)
        return None if borrowing is None else self.entitlement(project, resource_type) + borrowing

    def below_limit(self, project: str, resource_type: str) -> int | None:
        """Units that the project may still start; negative beyond its limit, None without one."""
        limit = self.limit(project, resource_type)
        return (
            None if limit is None else limit - self.held(project, resource_type) - self.ordered(project, resource_type)
        )

    def permits(self, project: str, amounts: Amounts, extra: Mapping[str, int] = NOTHING) -> bool:
        """Whether the project's borrowing limit lets it hold `amounts` and `extra` more."""
        if not self._policy.rules(project).borrowing_limit:
            return True
        return all(
            (available := self.below_limit(project, resource)) is None or amount + extra.get(resource, 0) <= available
            for resource, amount in amounts
        )

    def under_ceiling(self, project: str, amounts: Amounts, extra: Mapping[str, int] = NOTHING) -> bool:
        """Whether `amounts`, `extra` and what its running jobs hold are at most the project's ceiling."""
        return all(
            amount + extra.get(resource, 0) + self.held(project, resource) <= self._policy.ceiling(project, resource)
            for resource, amount in amounts
        )

    def unlent(self, project: str, resource_type: str) -> int:
        """Idle units of the project's entitlement kept from others; KeyError without a lending limit for the type."""
        lending = self._policy.rules(project).lending_limit[resource_type]
        idle = (
            self.entitlement(project, resource_type)
            - self.held(project, resource_type)
            - self.ordered(project, resource_type)
        )
        return max(0, idle - lending)

    def rank(self, project: str) -> Rank:
        """How well served the project is, lowest first; independent of what it asks for.

        The largest fraction of its entitlement that it holds or is promised, over all types. Projects entitled to
        nothing come last, ordered by what they hold.
        """
        held, ordered = self._held.get(project, NOTHING), self._ordered.get(project, NOTHING)
        part = 0.0
        for resource, amount in held.items():
            part = max(part, (amount + ordered.get(resource, 0)) / max(self.entitlement(project, resource), 1))
        for resource, amount in ordered.items():
            if resource not in held:
                part = max(part, amount / max(self.entitlement(project, resource), 1))
        return not self.is_entitled(project), part

    def is_entitled(self, project: str) -> bool:
        entitled = self._entitled.get(project)
        if entitled is None:
            entitled = any(self.entitlement(project, resource) for resource in self._policy.resource_types)
            self._entitled[project] = entitled
        return entitled

    def holdings(self, project: str) -> dict[str, int]:
        holdings = dict(self._held.get(project, NOTHING))
        for resource, amount in self._ordered.get(project, NOTHING).items():
            holdings[resource] = holdings.get(resource, 0) + amount
        return holdings


class Standing:
    """One project's holdings with hypothetical grants."""

    def __init__(self, shares: Shares, project: str) -> None:
        self._shares = shares
        self._project = project
        self._holdings = shares.holdings(project)
        self._granted: dict[str, int] = {}
        self._entitled = shares.is_entitled(project)
        # Dividing two ints rounds correctly, so equal parts are equal floats.
        parts = (amount / max(shares.entitlement(project, resource), 1) for resource, amount in self._holdings.items())
        self._part = max(parts, default=0.0)

    def grant(self, amounts: Amounts) -> None:
        self._part = self._part_with(amounts)
        for resource, amount in amounts:
            self._holdings[resource] = self._holdings.get(resource, 0) + amount
            self._granted[resource] = self._granted.get(resource, 0) + amount

    def rank(self, more: Amounts = ()) -> Rank:
        return not self._entitled, self._part_with(more) if more else self._part

    def covers(self, amounts: Amounts) -> bool:
        return self._shares.covers(self._project, amounts, self._granted)

    def permits(self, amounts: Amounts) -> bool:
        return self._shares.permits(self._project, amounts, self._granted)

    def _part_with(self, amounts: Amounts) -> float:
        part = self._part
        for resource, amount in amounts:
            held = (self._holdings.get(resource, 0) + amount) / max(
                self._shares.entitlement(self._project, resource), 1
            )
            part = max(part, held)
        return part


def _add(ledger: dict[str, dict[str, int]], project: str, amounts: Amounts, sign: int) -> None:
    holdings = ledger.setdefault(project, {})
    for resource, amount in amounts:
        holdings[resource] = holdings.get(resource, 0) + sign * amount
