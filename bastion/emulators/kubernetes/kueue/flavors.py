"""Which flavors a Workload would get, and what stands in the way.

Source: kueue pkg/scheduler/flavorassigner/flavorassigner.go.

Each attempt begins with the first flavor: that upstream goes on where the last attempt stopped is not emulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.selectors import tolerated
from bastion.emulators.kubernetes.kueue import amounts
from bastion.emulators.kubernetes.kueue.affinity import matches_labels
from bastion.emulators.kubernetes.kueue.quotas import FlavorResource, borrowing_level
from bastion.emulators.kubernetes.kueue.snapshot import Group, Info, PodSet, Queue, Snapshot


class Mode(IntEnum):
    """From worst to best; `NO_CANDIDATES`: preemption would be needed, and nothing may be preempted."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class Oracle(Protocol):
    def __call__(self, info: Info, resource: FlavorResource, amount: int) -> tuple[Mode, int]:
        """Whether preemption helps (NO_CANDIDATES, PREEMPT, RECLAIM), and how much is borrowed afterwards."""


@dataclass(frozen=True, slots=True)
class Choice:
    flavor: str
    mode: Mode
    borrowing: int


@dataclass(slots=True, kw_only=True)
class PodSetAssignment:
    """`reasons`: why it cannot be admitted now; empty if it can."""

    pod_set: PodSet
    choices: dict[str, Choice] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def mode(self) -> Mode:
        if not self.reasons:
            return Mode.FIT
        return min((choice.mode for choice in self.choices.values()), default=Mode.NO_FIT)


@dataclass(slots=True, kw_only=True)
class Assignment:
    pod_sets: list[PodSetAssignment] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        return min((each.mode for each in self.pod_sets), default=Mode.NO_FIT)

    @property
    def fits(self) -> bool:
        return self.mode is Mode.FIT

    @property
    def may_preempt(self) -> bool:
        return Mode.NO_FIT < self.mode < Mode.FIT

    @property
    def borrowing(self) -> int:
        return max((choice.borrowing for each in self.pod_sets for choice in each.choices.values()), default=0)

    @property
    def contested(self) -> set[FlavorResource]:
        """What others would have to give up (flavorResourcesNeedPreemption)."""
        return {
            (choice.flavor, resource)
            for each in self.pod_sets
            for resource, choice in each.choices.items()
            if Mode.NO_FIT < choice.mode < Mode.FIT
        }

    def message(self) -> str:
        parts = [
            f"couldn't assign flavors to pod set {each.pod_set.name}: {', '.join(sorted(each.reasons))}"
            for each in self.pod_sets
            if each.reasons
        ]
        return "; ".join(parts)

    def admission(self, queue: str) -> Obj:
        """The Workload's `status.admission`."""
        assignments = []
        for each in self.pod_sets:
            usage = {name: amounts.text(name, each.pod_set.requests[name]) for name in each.choices}
            flavors = {name: choice.flavor for name, choice in each.choices.items()}
            own = {"name": each.pod_set.name, "flavors": flavors, "resourceUsage": usage, "count": each.pod_set.count}
            assignments.append(own)
        return {"clusterQueue": queue, "podSetAssignments": assignments}


def assign(info: Info, snapshot: Snapshot, oracle: Oracle) -> Assignment:
    """Stops at the first pod set that no flavor fits."""
    queue = snapshot.queues[info.queue]
    result = Assignment()
    for pod_set in info.pod_sets:
        own = PodSetAssignment(pod_set=_with_pods(pod_set, queue))
        _assign_pod_set(info, own, queue, snapshot.flavors, oracle, result.usage)
        result.pod_sets.append(own)
        for resource, choice in own.choices.items():
            key = (choice.flavor, resource)
            result.usage[key] = result.usage.get(key, 0) + own.pod_set.requests[resource]
        if own.pod_set.requests and not own.choices and own.reasons:
            break
    return result


def _with_pods(pod_set: PodSet, queue: Queue) -> PodSet:
    if queue.group("pods") is None:
        return pod_set
    requests = {**pod_set.requests, "pods": pod_set.count}
    return PodSet(name=pod_set.name, count=pod_set.count, template=pod_set.template, requests=requests)


def _assign_pod_set(
    info: Info,
    own: PodSetAssignment,
    queue: Queue,
    flavors: Mapping[str, Obj],
    oracle: Oracle,
    used: Mapping[FlavorResource, int],
) -> None:
    for resource, amount in sorted(own.pod_set.requests.items()):
        if resource in own.choices:
            continue
        group = queue.group(resource)
        if group is None:
            if amount == 0:
                continue
            own.choices, own.reasons = {}, [f"resource {resource} unavailable in ClusterQueue"]
            return
        choices, reasons = _find_flavor(_Search(info, own.pod_set, queue, group, flavors, oracle, used))
        if not choices:
            own.choices, own.reasons = {}, reasons
            return
        own.choices.update(choices)
        own.reasons += reasons


@dataclass(frozen=True, slots=True)
class _Search:
    info: Info
    pod_set: PodSet
    queue: Queue
    group: Group
    flavors: Mapping[str, Obj]
    oracle: Oracle
    used: Mapping[FlavorResource, int]


def _find_flavor(search: _Search) -> tuple[dict[str, Choice], list[str]]:
    """findFlavorForPodSets: the choices for all resources of a group, and why they are not admitted at once."""
    fungibility = search.queue.spec.get("flavorFungibility") or {}
    requests = {name: n for name, n in search.pod_set.requests.items() if name in search.group.resources}
    best: dict[str, Choice] = {}
    best_rank: tuple[Mode, int] | None = None
    reasons: list[str] = []
    for flavor in search.group.flavors:
        if why := _mismatch(search, flavor):
            reasons.append(why)
            continue
        rank, choices = (Mode.FIT, 0), {}
        for resource, amount in sorted(requests.items()):
            mode, borrowing, why = _fits(search, (flavor, resource), amount)
            reasons += [why] if why else []
            if _preferred(rank, (mode, borrowing), fungibility):
                rank = (mode, borrowing)
            if rank[0] is Mode.NO_FIT:
                break
            choices[resource] = Choice(flavor, mode, borrowing)
        if not _try_next(rank, fungibility):
            best, best_rank = choices, rank
            break
        if rank[0] is not Mode.NO_FIT and (best_rank is None or _preferred(rank, best_rank, fungibility)):
            best, best_rank = choices, rank
    if best_rank is not None and best_rank[0] is Mode.FIT:
        return best, []
    return best, reasons


def _fits(search: _Search, resource: FlavorResource, amount: int) -> tuple[Mode, int, str]:
    """fitsResourceQuota."""
    queue, (flavor, name) = search.queue, resource
    available, capacity = max(0, queue.available(resource)), queue.capacity(resource)
    used = search.used.get(resource, 0)
    total = used + amount
    if total > capacity:
        earlier, own, most = (amounts.text(name, value) for value in (used, amount, capacity))
        why = (
            f"insufficient quota for {name} in flavor {flavor}, previously considered podsets requests ({earlier}) + "
            f"current podset request ({own}) > maximum capacity ({most})"
        )
        return Mode.NO_FIT, 0, why
    borrowing, may_reclaim = borrowing_level(queue, resource, total)
    if total <= available:
        return Mode.FIT, borrowing, ""
    missing = amounts.text(name, total - available)
    why = f"insufficient unused quota for {name} in flavor {flavor}, {missing} more needed"
    borrow_policy = ((queue.spec.get("preemption") or {}).get("borrowWithinCohort") or {}).get("policy", "Never")
    if queue.quota(resource).nominal >= total or may_reclaim or borrow_policy != "Never":
        mode, borrowing = search.oracle(search.info, resource, total)
        return mode, borrowing, why
    return Mode.NO_FIT, borrowing, why


def _mismatch(search: _Search, name: str) -> str:
    """checkFlavorForPodSets: why the pods cannot use a flavor's nodes."""
    flavor = search.flavors.get(name)
    if flavor is None:
        return f"flavor {name} not found"
    spec, pod = flavor.get("spec") or {}, search.pod_set.template.get("spec") or {}
    tolerations = [*(pod.get("tolerations") or ()), *(spec.get("tolerations") or ())]
    for taint in spec.get("nodeTaints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and tolerated(taint, tolerations) is None:
            shown = f"{{{taint['key']} {taint.get('value', '')} {taint['effect']} <nil>}}"
            return f"untolerated taint {shown} in flavor {name}"
    if not matches_labels(pod, spec.get("nodeLabels") or {}):
        return f"flavor {name} doesn't match node affinity"
    return ""


def _preferred(a: tuple[Mode, int], b: tuple[Mode, int], fungibility: Obj) -> bool:
    """isPreferred: whether `a` is better."""
    if Mode.NO_FIT in (a[0], b[0]):
        return a[0] is not Mode.NO_FIT
    if (a[0] is Mode.NO_CANDIDATES) != (b[0] is Mode.NO_CANDIDATES):
        return b[0] is Mode.NO_CANDIDATES
    if fungibility.get("preference") == "PreemptionOverBorrowing":
        return (-a[1], a[0]) > (-b[1], b[0])
    return (a[0], -a[1]) > (b[0], -b[1])


def _try_next(rank: tuple[Mode, int], fungibility: Obj) -> bool:
    """shouldTryNextFlavor."""
    mode, borrowing = rank
    if mode in (Mode.NO_FIT, Mode.NO_CANDIDATES):
        return True
    if mode in (Mode.PREEMPT, Mode.RECLAIM) and fungibility.get("whenCanPreempt", "TryNextFlavor") == "TryNextFlavor":
        return True
    return borrowing > 0 and fungibility.get("whenCanBorrow", "MayStopSearch") == "TryNextFlavor"
