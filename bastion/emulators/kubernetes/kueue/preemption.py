"""Which Workloads make room for another (kueue pkg/scheduler/preemption: preemption.go, preemption_oracle.go,
classical/, common/), without fair sharing, in cohorts without parents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bastion.emulators.kubernetes.kueue.flavors import Assignment, Mode
from bastion.emulators.kubernetes.kueue.quotas import Amounts, FlavorResource, borrowing_level
from bastion.emulators.kubernetes.kueue.snapshot import Info, Queue, Snapshot

IN_QUEUE = "InClusterQueue"
RECLAIMED = "InCohortReclamation"
RECLAIMED_TO_BORROW = "InCohortReclaimWhileBorrowing"
WORDS = {
    IN_QUEUE: "prioritization in the ClusterQueue",
    RECLAIMED: "reclamation within the cohort",
    RECLAIMED_TO_BORROW: "reclamation within the cohort while borrowing",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A Workload to evict; `reason` of its condition Preempted."""

    info: Info
    reason: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    info: Info
    reason: str
    # May be preempted only if the preemptor does not borrow then.
    without_borrowing: bool = False


def targets(info: Info, assignment: Assignment, snapshot: Snapshot) -> list[Target]:
    """Empty: there is no way, or none that the policies allow."""
    usage = {resource: amount for resource, amount in assignment.usage.items() if amount}
    return _Attempt(info, snapshot, assignment.contested, usage).targets()


def simulate(info: Info, snapshot: Snapshot, resource: FlavorResource, amount: int) -> tuple[Mode, int]:
    """SimulatePreemption, for `flavors.Oracle`."""
    queue = snapshot.queues[info.queue]
    found = _Attempt(info, snapshot, {resource}, {resource: amount}).targets()
    if not found:
        return Mode.NO_CANDIDATES, borrowing_level(queue, resource, amount)[0]
    for target in found:
        snapshot.queues[target.info.queue].remove(target.info.usage)
    borrowing, _ = borrowing_level(queue, resource, amount)
    for target in found:
        snapshot.queues[target.info.queue].add(target.info.usage)
    own = any(target.info.queue == info.queue for target in found)
    return (Mode.PREEMPT if own else Mode.RECLAIM), borrowing


class _Attempt:
    def __init__(self, info: Info, snapshot: Snapshot, contested: set[FlavorResource], usage: Amounts) -> None:
        self.info = info
        self.snapshot = snapshot
        self.queue = snapshot.queues[info.queue]
        self.contested = contested
        self.usage = usage
        policy = (self.queue.spec.get("preemption") or {}).get("borrowWithinCohort") or {}
        self.borrowing_policy: str = policy.get("policy", "Never")
        self.threshold: int | None = policy.get("maxPriorityThreshold")

    def targets(self) -> list[Target]:
        """classicalPreemptions."""
        own = self._own_candidates()
        reclaimed, by_priority = self._cohort_candidates()
        ordered = self._ordered(reclaimed, by_priority, own)
        forbidden = self.borrowing_policy == "Never"
        if not (reclaimed or by_priority) or (forbidden and not self._under_nominal()):
            attempts = [True]
        elif forbidden and not reclaimed:
            attempts = [False, True]
        else:
            attempts = [True, False]
        for borrowing in attempts:
            if found := self._attempt(ordered, borrowing=borrowing):
                return found
        return []

    def _own_candidates(self) -> list[_Candidate]:
        policy = self.queue.policy("withinClusterQueue")
        if policy == "Never":
            return []
        return [
            _Candidate(other, IN_QUEUE)
            for other in self.queue.workloads.values()
            if self._uses_contested(other) and self._allowed(other, policy)
        ]

    def _cohort_candidates(self) -> tuple[list[_Candidate], list[_Candidate]]:
        """Those whose queues use what is nominally the preemptor's, and those that are preempted for their priority."""
        policy = self.queue.policy("reclaimWithinCohort")
        if self.queue.parent is None or policy == "Never":
            return [], []
        advantage = all(
            self.queue.subtree.get(resource, 0) >= self.queue.usage.get(resource, 0) + amount
            for resource, amount in self.usage.items()
        )
        found = [
            self._cohort_candidate(other, advantage=advantage)
            for member in self._members()
            if not member.within_nominal(self.contested)
            for other in member.workloads.values()
            if self._uses_contested(other) and self._allowed(other, policy)
        ]
        return (found, []) if advantage else ([], found)

    def _members(self) -> list[Queue]:
        cohort = self.queue.parent
        assert cohort is not None
        return [member for member in self.snapshot.members.get(cohort.name, ()) if member is not self.queue]

    def _cohort_candidate(self, other: Info, *, advantage: bool) -> _Candidate:
        """classifyPreemptionVariant."""
        if advantage:
            return _Candidate(other, RECLAIMED)
        above = other.priority >= self.info.priority or (self.threshold is not None and other.priority > self.threshold)
        if self.borrowing_policy == "Never" or above:
            return _Candidate(other, RECLAIMED, without_borrowing=True)
        return _Candidate(other, RECLAIMED_TO_BORROW)

    def _uses_contested(self, other: Info) -> bool:
        return any(resource in self.contested for resource in other.usage)

    def _allowed(self, other: Info, policy: str) -> bool:
        """SatisfiesPreemptionPolicy."""
        lower = self.info.priority > other.priority
        if policy == "LowerPriority":
            return lower
        if policy == "LowerOrNewerEqualPriority":
            return lower or (self.info.priority == other.priority and self.info.timestamp < other.timestamp)
        return policy == "Any"

    def _ordered(self, *lists: list[_Candidate]) -> list[_Candidate]:
        """Those being evicted already first; then lower priorities, then what was admitted last."""
        sorted_lists = [sorted(candidates, key=self._order) for candidates in lists]
        evicted = [each for listed in sorted_lists for each in listed if each.info.evicted]
        return evicted + [each for listed in sorted_lists for each in listed if not each.info.evicted]

    def _order(self, candidate: _Candidate) -> tuple[object, ...]:
        """CandidatesOrdering."""
        info = candidate.info
        latest_first = tuple(-ord(letter) for letter in info.reserved_at)
        return info.queue == self.queue.name, info.priority, latest_first, info.uid

    def _under_nominal(self) -> bool:
        return all(
            self.queue.quota(resource).nominal > self.queue.usage.get(resource, 0) for resource in self.contested
        )

    def _attempt(self, candidates: Iterable[_Candidate], *, borrowing: bool) -> list[Target]:
        taken: list[Target] = []
        found: list[Target] = []
        for candidate in candidates:
            if not self._is_valid(candidate, borrowing=borrowing):
                continue
            self.snapshot.queues[candidate.info.queue].take(candidate.info)
            taken.append(Target(candidate.info, candidate.reason))
            if self._fits(borrowing=borrowing):
                taken = found = self._fill_back(taken, borrowing=borrowing)
                break
        for target in taken:
            self.snapshot.queues[target.info.queue].put(target.info)
        return found

    def _is_valid(self, candidate: _Candidate, *, borrowing: bool) -> bool:
        if candidate.info.queue == self.queue.name:
            return True
        if borrowing and candidate.without_borrowing:
            return False
        return not self.snapshot.queues[candidate.info.queue].within_nominal(self.contested)

    def _fits(self, *, borrowing: bool) -> bool:
        """workloadFits."""
        for resource, amount in self.usage.items():
            if not borrowing and self.queue.borrows_with(resource, amount):
                return False
        return self.queue.fits(self.usage)

    def _fill_back(self, taken: list[Target], *, borrowing: bool) -> list[Target]:
        """fillBackWorkloads: spare what need not go, in the reverse order, apart from the last."""
        index = len(taken) - 2
        while index >= 0:
            target = taken[index]
            queue = self.snapshot.queues[target.info.queue]
            queue.put(target.info)
            if self._fits(borrowing=borrowing):
                taken[index] = taken[-1]
                taken.pop()
            else:
                queue.take(target.info)
            index -= 1
        return taken
