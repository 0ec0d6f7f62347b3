"""How much of the pool is taken, tier by tier.

A job labelled with tier t may use tiers 0..t and is charged from t upward. Demands fit if for every tier s the jobs
labelled 0..s together take no more than tiers 0..s hold. This does not depend on the order in which jobs came, and
leaves better tiers to jobs that need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Amounts above 0 per resource type, sorted by type; hashable, so that jobs with equal demand share answers.
Amounts = tuple[tuple[str, int], ...]


def amounts_of(mapping: Mapping[str, int]) -> Amounts:
    if len(mapping) == 1:  # nearly every job
        ((resource, amount),) = mapping.items()
        return ((resource, amount),) if amount > 0 else ()
    return tuple(sorted((resource, amount) for resource, amount in mapping.items() if amount > 0))


class Capacity:
    def __init__(self, tiers: Iterable[Mapping[str, int]]) -> None:
        tables = tuple(tiers)
        self._last = max(len(tables) - 1, 0)
        self._limits: dict[str, list[int]] = {}
        for resource in {resource for table in tables for resource in table}:
            sums, total = [], 0
            for table in tables:
                total += table.get(resource, 0)
                sums.append(total)
            self._limits[resource] = sums
        # Taken by jobs labelled 0..s, per tier s.
        self._taken: dict[str, list[int]] = {resource: [0] * len(sums) for resource, sums in self._limits.items()}

    def copy(self) -> Capacity:
        other = Capacity.__new__(Capacity)
        other._last, other._limits = self._last, self._limits
        other._taken = {resource: list(sums) for resource, sums in self._taken.items()}
        return other

    @property
    def last(self) -> int:
        return self._last

    def label(self, tier: int | None) -> int:
        """The current tier for a recorded one; the quota file may have fewer tiers now."""
        return min(max(tier or 0, 0), self._last)

    def take(self, amounts: Amounts, tier: int) -> None:
        """Charge a job labelled with that tier. May exceed the limit: running jobs outlive a cut."""
        for resource, amount in amounts:
            self._add(resource, amount, tier)

    def give_back(self, amounts: Amounts, tier: int) -> None:
        for resource, amount in amounts:
            self._add(resource, -amount, tier)

    def free(self, resource_type: str) -> int:
        """Free units in all tiers; negative after a cut."""
        limits = self._limits.get(resource_type)
        taken = self._taken.get(resource_type)
        return (limits[-1] if limits else 0) - (taken[-1] if taken else 0)

    def fits(self, amounts: Amounts) -> bool:
        return all(amount <= self.free(resource) for resource, amount in amounts)

    def lacking(self, amounts: Amounts) -> dict[str, int]:
        return {resource: amount - self.free(resource) for resource, amount in amounts if amount > self.free(resource)}

    def available(self, resource_type: str, tier: int) -> int:
        """Units of a type of the pool that a job labelled with that tier can get."""
        limits, taken = self._limits[resource_type], self._taken[resource_type]
        return min(limit - amount for limit, amount in zip(limits[tier:], taken[tier:], strict=True))

    def _add(self, resource_type: str, amount: int, tier: int) -> None:
        taken = self._taken.get(resource_type)
        if taken is None:  # a type that the quota file no longer has
            taken = self._taken[resource_type] = [0] * (self._last + 1)
        for index in range(tier, self._last + 1):
            taken[index] += amount

    def best_tier(self, amounts: Amounts, other: Capacity) -> int:
        """The smallest label on which the demand fits in both pools; the last one if it fits in neither."""
        for tier in range(self._last):
            if all(
                min(self.available(resource, tier), other.available(resource, tier)) >= amount
                for resource, amount in amounts
            ):
                return tier
        return self._last
