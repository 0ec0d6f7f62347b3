"""How much of the pool is taken, tier by tier.

Layer: `scheduler`, pure. A job labelled with tier t may use tiers 0..t, and is charged from t upwards. So what fits is
exactly: for every tier s, the jobs labelled 0..s together take no more than tiers 0..s hold. Keeping only these sums
makes the answer independent of the order in which jobs came, and leaves good tiers to those who need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Amounts above 0 per resource type, sorted by type: hashable, so that jobs which ask the same share their answers.
Amounts = tuple[tuple[str, int], ...]


def amounts_of(mapping: Mapping[str, int]) -> Amounts:
    """The amounts above 0, sorted by type."""
    if len(mapping) == 1:  # nearly every job
        ((kind, amount),) = mapping.items()
        return ((kind, amount),) if amount > 0 else ()
    return tuple(sorted((kind, amount) for kind, amount in mapping.items() if amount > 0))


class Capacity:
    """A ledger of the pool: what each tier holds, and what is taken from it."""

    def __init__(self, tiers: Iterable[Mapping[str, int]]) -> None:
        tables = tuple(tiers)
        self._last = max(len(tables) - 1, 0)
        self._limits: dict[str, list[int]] = {}
        for kind in {kind for table in tables for kind in table}:
            sums, total = [], 0
            for table in tables:
                total += table.get(kind, 0)
                sums.append(total)
            self._limits[kind] = sums
        # Taken by jobs labelled 0..s, per tier s.
        self._taken: dict[str, list[int]] = {kind: [0] * len(sums) for kind, sums in self._limits.items()}

    def copy(self) -> Capacity:
        """The same pool; what is taken from the one stays in the other."""
        other = Capacity.__new__(Capacity)
        other._last, other._limits = self._last, self._limits
        other._taken = {kind: list(sums) for kind, sums in self._taken.items()}
        return other

    @property
    def last(self) -> int:
        """The worst tier."""
        return self._last

    def label(self, tier: int | None) -> int:
        """The tier that a recorded tier means today: the quota file may have fewer tiers than when it was written."""
        return min(max(tier or 0, 0), self._last)

    def take(self, amounts: Amounts, tier: int) -> None:
        """Charges a job labelled with that tier. May take more than there is: incumbents outlive a cut."""
        for kind, amount in amounts:
            self._add(kind, amount, tier)

    def give_back(self, amounts: Amounts, tier: int) -> None:
        """Undoes `take`."""
        for kind, amount in amounts:
            self._add(kind, -amount, tier)

    def free(self, kind: str) -> int:
        """Units of all tiers that nobody took; negative after a cut."""
        limits = self._limits.get(kind)
        taken = self._taken.get(kind)
        return (limits[-1] if limits else 0) - (taken[-1] if taken else 0)

    def fits(self, amounts: Amounts) -> bool:
        """Whether a job of that demand fits on some tier."""
        return all(amount <= self.free(kind) for kind, amount in amounts)

    def lacking(self, amounts: Amounts) -> dict[str, int]:
        """The units that a job of that demand lacks, per type that lacks any."""
        return {kind: amount - self.free(kind) for kind, amount in amounts if amount > self.free(kind)}

    def room(self, kind: str, tier: int) -> int:
        """Units of a type of the pool that a job labelled with that tier can get."""
        limits, taken = self._limits[kind], self._taken[kind]
        return min(limit - amount for limit, amount in zip(limits[tier:], taken[tier:], strict=True))

    def _add(self, kind: str, amount: int, tier: int) -> None:
        taken = self._taken.get(kind)
        if taken is None:  # a type that the quota file no longer has
            taken = self._taken[kind] = [0] * (self._last + 1)
        for index in range(tier, self._last + 1):
            taken[index] += amount

    def best_tier(self, amounts: Amounts, other: Capacity) -> int:
        """The smallest label on which the demand fits in both ledgers; the last one where it fits nowhere."""
        for tier in range(self._last):
            if all(min(self.room(kind, tier), other.room(kind, tier)) >= amount for kind, amount in amounts):
                return tier
        return self._last
