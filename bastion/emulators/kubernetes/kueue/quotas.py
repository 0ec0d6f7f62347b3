"""Quota of a ClusterQueue and its cohort: what is used, what is lent, what may be borrowed.

Source: kueue pkg/cache/scheduler/resource_node.go. Amounts are in the units of `amounts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FlavorResource = tuple[str, str]
Amounts = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Quota:
    """`borrowing` and `lending`: None is without limit."""

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


_NOTHING = Quota()


@dataclass(kw_only=True, eq=False)
class Node:
    """A ClusterQueue or a cohort.

    Attributes:
        subtree: Its quota, with what members lend to a cohort.
        usage: What counts against `subtree`: of a cohort, what members use past the quota that they do not lend.
    """

    name: str
    quotas: dict[FlavorResource, Quota] = field(default_factory=dict)
    parent: Node | None = None
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    usage: dict[FlavorResource, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subtree = {resource: quota.nominal for resource, quota in self.quotas.items()}

    def quota(self, resource: FlavorResource) -> Quota:
        return self.quotas.get(resource, _NOTHING)

    def join(self, cohort: Node) -> None:
        """Lend to a cohort; before anything is used."""
        self.parent = cohort
        for resource, amount in self.subtree.items():
            lent = amount - self.kept(resource)
            cohort.subtree[resource] = cohort.subtree.get(resource, 0) + lent

    def kept(self, resource: FlavorResource) -> int:
        """The quota that is never lent (localQuota)."""
        lending = self.quota(resource).lending
        return 0 if lending is None else max(0, self.subtree.get(resource, 0) - lending)

    def own_available(self, resource: FlavorResource) -> int:
        """What is left of the quota that is never lent (LocalAvailable)."""
        return max(0, self.kept(resource) - self.usage.get(resource, 0))

    def available(self, resource: FlavorResource) -> int:
        """What may be used now; negative if too much is used already."""
        if self.parent is None:
            return self.subtree.get(resource, 0) - self.usage.get(resource, 0)
        from_parent = self.parent.available(resource)
        if (limit := self.quota(resource).borrowing) is not None:
            kept = self.kept(resource)
            used_in_parent = max(0, self.usage.get(resource, 0) - kept)
            from_parent = min(self.subtree.get(resource, 0) - kept - used_in_parent + limit, from_parent)
        return self.own_available(resource) + from_parent

    def capacity(self, resource: FlavorResource) -> int:
        """What could be used if nothing were used (potentialAvailable)."""
        own = self.subtree.get(resource, 0)
        if self.parent is None:
            return own
        most = self.kept(resource) + self.parent.capacity(resource)
        limit = self.quota(resource).borrowing
        return most if limit is None else min(own + limit, most)

    def borrows_with(self, resource: FlavorResource, amount: int = 0) -> bool:
        return self.subtree.get(resource, 0) < self.usage.get(resource, 0) + amount

    def within_nominal(self, resources: Iterable[FlavorResource]) -> bool:
        return not any(self.borrows_with(resource) for resource in resources)

    def add(self, amounts: Amounts) -> None:
        for resource, amount in amounts.items():
            own = self.own_available(resource)
            self.usage[resource] = self.usage.get(resource, 0) + amount
            if self.parent is not None and amount > own:
                self.parent.add({resource: amount - own})

    def remove(self, amounts: Amounts) -> None:
        for resource, amount in amounts.items():
            in_parent = self.usage.get(resource, 0) - self.kept(resource)
            self.usage[resource] = self.usage.get(resource, 0) - amount
            if self.parent is not None and in_parent > 0:
                self.parent.remove({resource: min(amount, in_parent)})

    def fits(self, amounts: Amounts) -> bool:
        return all(max(0, self.available(resource)) >= amount for resource, amount in amounts.items())


def borrowing_level(queue: Node, resource: FlavorResource, amount: int) -> tuple[int, bool]:
    """How far away the quota for an amount is, 0: in the queue itself; and whether others may lend still
    (classical/hierarchical_preemption.go, FindHeightOfLowestSubtreeThatFits, in a cohort without a parent)."""
    if queue.parent is None:
        return 0, False
    return (1, False) if queue.borrows_with(resource, amount) else (0, True)
