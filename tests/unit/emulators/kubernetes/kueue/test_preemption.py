"""What is preempted for what: the cases of TestPreemption in kueue v0.19.2 pkg/scheduler/preemption/preemption_test.go,
by their names there.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.kueue.flavors import Assignment, Choice, Mode, PodSetAssignment
from bastion.emulators.kubernetes.kueue.preemption import targets
from bastion.emulators.kubernetes.kueue.snapshot import Info, PodSet
from tests.support.kueue_objects import cluster_queue, group, quota
from tests.support.kueue_snapshots import cluster, parsed, pending

_LOWER = "LowerPriority"
_SHORT = {"InClusterQueue": "own", "InCohortReclamation": "reclaim", "InCohortReclaimWhileBorrowing": "borrow"}


def _policies(within: str = "Never", reclaim: str = "Never", *, borrow_up_to: int | None = None) -> Obj:
    policies: Obj = {"withinClusterQueue": within, "reclaimWithinCohort": reclaim}
    if borrow_up_to is not None:
        policies["borrowWithinCohort"] = {"policy": _LOWER, "maxPriorityThreshold": borrow_up_to}
    return {"preemption": policies}


def _cpu(nominal: int, borrow: int | None = None, lend: int | None = None) -> Obj:
    return group(default=quota("cpu", nominal, borrow, lend))


def _both(cpu: int, memory: str, cpu_borrow: int | None = None, memory_borrow: str | None = None) -> Obj:
    limited: Obj = {} if memory_borrow is None else {"borrowingLimit": memory_borrow}
    return group(default=[quota("cpu", cpu, cpu_borrow), {**quota("memory", memory), **limited}])


QUEUES = (
    cluster_queue(
        "standalone",
        _cpu(6),
        group(alpha=quota("memory", "3Gi"), beta=quota("memory", "3Gi")),
        **_policies(_LOWER),
    ),
    cluster_queue("c1", _both(6, "3Gi", 6, "3Gi"), cohort="cohort", **_policies(_LOWER, _LOWER)),
    cluster_queue("c2", _both(6, "3Gi", 6, "3Gi"), cohort="cohort", **_policies("Never", "Any")),
    cluster_queue("d1", _both(6, "3Gi"), cohort="cohort-no-limits", **_policies(_LOWER, _LOWER)),
    cluster_queue("d2", _both(6, "3Gi"), cohort="cohort-no-limits", **_policies("Never", "Any")),
    cluster_queue("l1", _both(6, "3Gi", 12, "6Gi"), cohort="legion", **_policies(_LOWER, _LOWER)),
    cluster_queue("preventStarvation", _cpu(6), **_policies("LowerOrNewerEqualPriority")),
    cluster_queue("a_standard", _cpu(1, 12), cohort="with_shared_cq", **_policies("Never", _LOWER, borrow_up_to=0)),
    cluster_queue("b_standard", _cpu(1, 12), cohort="with_shared_cq", **_policies(_LOWER, "Any", borrow_up_to=0)),
    cluster_queue("a_best_effort", _cpu(1, 12), cohort="with_shared_cq", **_policies("Never", _LOWER, borrow_up_to=0)),
    cluster_queue("b_best_effort", _cpu(0, 13), cohort="with_shared_cq", **_policies("Never", _LOWER, borrow_up_to=0)),
    cluster_queue("shared", _cpu(10), cohort="with_shared_cq"),
    cluster_queue("lend1", _cpu(6, None, 4), cohort="cohort-lend", **_policies(_LOWER, _LOWER)),
    cluster_queue("lend2", _cpu(6, None, 2), cohort="cohort-lend", **_policies(_LOWER, _LOWER)),
    cluster_queue("a", _both(2, "2"), cohort="cohort-three", **_policies(_LOWER, "Any")),
    cluster_queue("b", _both(2, "2"), cohort="cohort-three"),
    cluster_queue("c", _both(2, "2"), cohort="cohort-three"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """`incoming`: queue, priority, requests; `fit`: resources that need no preemption."""

    name: str
    admitted: str
    incoming: str
    preempted: str
    fit: tuple[str, ...] = ()
    flavors: tuple[tuple[str, str], ...] = ()


CASES = (
    Case(
        "preempt lowest priority",
        "low standalone -1 cpu=2; mid standalone 0 cpu=2; high standalone 1 cpu=2",
        "standalone 1 cpu=2",
        "low:own",
    ),
    Case(
        "preempt multiple",
        "low standalone -1 cpu=2; mid standalone 0 cpu=2; high standalone 1 cpu=2",
        "standalone 1 cpu=3",
        "low:own mid:own",
    ),
    Case(
        "no preemption for low priority",
        "low standalone -1 cpu=3; mid standalone 0 cpu=3",
        "standalone -1 cpu=1",
        "",
    ),
    Case(
        "not enough low priority workloads",
        "low standalone -1 cpu=3; mid standalone 0 cpu=3",
        "standalone 0 cpu=4",
        "",
    ),
    Case(
        "some free quota, preempt low priority",
        "low standalone -1 cpu=1; mid standalone 0 cpu=1; high standalone 1 cpu=3",
        "standalone 1 cpu=2",
        "low:own",
    ),
    Case(
        "minimal set excludes low priority",
        "low standalone -1 cpu=1; mid standalone 0 cpu=2; high standalone 1 cpu=3",
        "standalone 1 cpu=2",
        "mid:own",
    ),
    Case(
        "only preempt workloads using the chosen flavor",
        "low standalone -1 alpha/memory=2Gi; mid standalone 0 beta/memory=1Gi; high standalone 1 beta/memory=1Gi",
        "standalone 1 cpu=1,memory=2Gi",
        "mid:own",
        fit=("cpu",),
        flavors=(("memory", "beta"),),
    ),
    Case(
        "reclaim quota from borrower",
        "c1-low c1 -1 cpu=3; c2-mid c2 0 cpu=3; c2-high c2 1 cpu=6",
        "c1 1 cpu=3",
        "c2-mid:reclaim",
    ),
    Case(
        "reclaim quota if workload requests 0 resources for a resource at nominal quota",
        "c1-low c1 -1 cpu=3,memory=3Gi; c2-mid c2 0 cpu=3; c2-high c2 1 cpu=6",
        "c1 1 cpu=3,memory=0",
        "c2-mid:reclaim",
        fit=("memory",),
    ),
    Case("no workloads borrowing", "c1-high c1 1 cpu=4; c2-low-1 c2 -1 cpu=4", "c1 1 cpu=4", ""),
    Case(
        "not enough workloads borrowing",
        "c1-high c1 1 cpu=4; c2-low-1 c2 -1 cpu=4; c2-low-2 c2 -1 cpu=4",
        "c1 1 cpu=4",
        "",
    ),
    Case(
        "preempting locally and borrowing other resources in cohort, without cohort candidates",
        "c1-low c1 -1 cpu=4; c2-low-1 c2 -1 cpu=4; c2-high-2 c2 1 cpu=4",
        "c1 1 cpu=4,memory=5Gi",
        "c1-low:own",
    ),
    Case(
        "preempting locally and borrowing same resource in cohort",
        "c1-med c1 0 cpu=4; c1-low c1 -1 cpu=4; c2-low-1 c2 -1 cpu=4",
        "c1 1 cpu=4",
        "c1-low:own",
    ),
    Case(
        "preempting locally and borrowing same resource in cohort; no borrowing limit in the cohort",
        "d1-med d1 0 cpu=4; d1-low d1 -1 cpu=4; d2-low-1 d2 -1 cpu=4",
        "d1 1 cpu=4",
        "d1-low:own",
    ),
    Case(
        "preempting locally and borrowing other resources in cohort, with cohort candidates",
        "c1-med c1 0 cpu=4; c2-low-1 c2 -1 cpu=5; c2-low-2 c2 -1 cpu=1; c2-low-3 c2 -1 cpu=1",
        "c1 1 cpu=2,memory=5Gi",
        "c1-med:own",
    ),
    Case(
        "preempting locally and not borrowing same resource in 1-queue cohort",
        "l1-med l1 0 cpu=4; l1-low l1 -1 cpu=2",
        "l1 1 cpu=4",
        "l1-med:own",
    ),
    Case(
        "do not reclaim borrowed quota from same priority for withinCohort=ReclaimFromLowerPriority",
        "c1 c1 0 cpu=2; c2-1 c2 0 cpu=4; c2-2 c2 0 cpu=4",
        "c1 0 cpu=4",
        "",
    ),
    Case(
        "reclaim borrowed quota from same priority for withinCohort=ReclaimFromAny",
        "c1-1 c1 0 cpu=4; c1-2 c1 1 cpu=4; c2 c2 0 cpu=2",
        "c2 0 cpu=4",
        "c1-1:reclaim",
    ),
    Case(
        "preempt from all ClusterQueues in cohort",
        "c1-low c1 -1 cpu=3; c1-mid c1 0 cpu=2; c2-low c2 -1 cpu=3; c2-mid c2 0 cpu=4",
        "c1 0 cpu=4",
        "c1-low:own c2-low:reclaim",
    ),
    Case(
        "can't preempt workloads in ClusterQueue for withinClusterQueue=Never",
        "c2-low c2 -1 cpu=3",
        "c2 1 cpu=4",
        "",
    ),
    Case(
        "use BorrowWithinCohort; allow preempting a lower-priority workload from another ClusterQueue while borrowing",
        "a_best_effort_low a_best_effort -1 cpu=10; b_best_effort_low b_best_effort -1 cpu=1",
        "a_standard 0 cpu=10",
        "a_best_effort_low:borrow",
    ),
    Case(
        "use BorrowWithinCohort; don't allow preempting a lower-priority workload with priority above "
        "MaxPriorityThreshold, if borrowing is required even after the preemption",
        "b_standard b_standard 1 cpu=10",
        "a_standard 2 cpu=10",
        "",
    ),
    Case(
        "use BorrowWithinCohort; allow preempting a lower-priority workload with priority above MaxPriorityThreshold, "
        "if borrowing is not required after the preemption",
        "b_standard b_standard 1 cpu=13",
        "a_standard 2 cpu=1",
        "b_standard:reclaim",
    ),
    Case(
        "use BorrowWithinCohort; don't allow for preemption of lower-priority workload from the same ClusterQueue",
        "a_standard a_standard 1 cpu=13",
        "a_standard 2 cpu=1",
        "",
    ),
    Case(
        "use BorrowWithinCohort; only preempt from CQ if no workloads below threshold and already above nominal",
        "a_standard_1 a_standard 1 cpu=10; a_standard_2 a_standard 1 cpu=1; b_standard_1 b_standard 1 cpu=1; "
        "b_standard_2 b_standard 2 cpu=1",
        "b_standard 3 cpu=1",
        "b_standard_1:own",
    ),
    Case(
        "use BorrowWithinCohort; preempt from CQ and from other CQs with workloads below threshold",
        "b_standard_high b_standard 2 cpu=10; b_standard_mid b_standard 1 cpu=1; "
        "a_best_effort_low a_best_effort -1 cpu=1; a_best_effort_lower a_best_effort -2 cpu=1",
        "b_standard 2 cpu=2",
        "a_best_effort_lower:borrow b_standard_mid:own",
    ),
    Case(
        "reclaim quota from lender",
        "lend1-low lend1 -1 cpu=3; lend2-mid lend2 0 cpu=3; lend2-high lend2 1 cpu=4",
        "lend1 1 cpu=3",
        "lend2-mid:reclaim",
    ),
    Case(
        "preempt from all ClusterQueues in cohort-lend",
        "lend1-low lend1 -1 cpu=3; lend1-mid lend1 0 cpu=2; lend2-low lend2 -1 cpu=3; lend2-mid lend2 0 cpu=4",
        "lend1 0 cpu=4",
        "lend1-low:own lend2-low:reclaim",
    ),
    Case(
        "cannot preempt from other ClusterQueues if exceeds requestable quota including lending limit",
        "lend2-low lend2 -1 cpu=10",
        "lend1 0 cpu=9",
        "",
    ),
    Case(
        "preemptions from cq when target queue is exhausted for the single requested resource",
        "a1 a -2 cpu=1; a2 a -2 cpu=1; a3 a -1 cpu=1; b1 b 0 cpu=1; b2 b 0 cpu=1; b3 b 0 cpu=1",
        "a 0 cpu=2",
        "a1:own a2:own",
    ),
    Case(
        "preemptions from cq when target queue is exhausted for two requested resources",
        "a1 a -2 cpu=1,memory=1; a2 a -2 cpu=1,memory=1; a3 a -1 cpu=1,memory=1; b1 b 0 cpu=1,memory=1; "
        "b2 b 0 cpu=1,memory=1; b3 b 0 cpu=1,memory=1",
        "a 0 cpu=2,memory=2",
        "a1:own a2:own",
    ),
    Case(
        "preemptions from cq when target queue is exhausted for one requested resource, but not the other",
        "a1 a -2 cpu=1; a2 a -2 cpu=1; a3 a -1 cpu=1; b1 b 0 cpu=1; b2 b 0 cpu=1; b3 b 0 cpu=1",
        "a 0 cpu=2,memory=2",
        "a1:own a2:own",
    ),
    Case(
        "allow preemption from other cluster queues if target cq is not exhausted for the requested resource",
        "a1 a -1 cpu=1; b1 b 0 cpu=1; b2 b 0 cpu=1; b3 b 0 cpu=1; b4 b 0 cpu=1; b5 b -1 cpu=1",
        "a 0 cpu=2",
        "a1:own b5:reclaim",
    ),
)


def _assignment(info: Info, case: Case) -> Assignment:
    """What the flavor assignment of the case says, in place of the assigner."""
    flavors = dict(case.flavors)
    (pod_set,) = info.pod_sets
    choices = {
        resource: Choice(flavors.get(resource, "default"), Mode.FIT if resource in case.fit else Mode.PREEMPT, 0)
        for resource in pod_set.requests
    }
    usage = {(choices[name].flavor, name): amount for name, amount in pod_set.requests.items() if amount}
    return Assignment(pod_sets=[PodSetAssignment(pod_set=pod_set, choices=choices, reasons=["x"])], usage=usage)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_targets(case: Case) -> None:
    queue, priority, requests = case.incoming.split()
    info = pending("in", queue, int(priority), requests)
    found = cluster(QUEUES, using=[parsed(line) for line in case.admitted.split("; ")])
    before = {name: dict(each.usage) for name, each in found.queues.items()}
    chosen = targets(info, _assignment(info, case), found)
    assert sorted(f"{each.info.uid}:{_SHORT[each.reason]}" for each in chosen) == case.preempted.split()
    assert {name: dict(each.usage) for name, each in found.queues.items()} == before


def test_each_podset_preempts_a_different_flavor() -> None:
    using = [parsed("low-alpha standalone -1 alpha/memory=2Gi"), parsed("low-beta standalone -1 beta/memory=2Gi")]
    info = pending("in", "standalone", 0, "memory=2Gi")
    own = {"launcher": "alpha", "workers": "beta"}
    pod_sets = []
    usage = {}
    for name, flavor in own.items():
        pod_set = PodSet(name=name, count=1, template={}, requests={"memory": 2 << 30})
        choices = {"memory": Choice(flavor, Mode.PREEMPT, 0)}
        pod_sets.append(PodSetAssignment(pod_set=pod_set, choices=choices, reasons=["x"]))
        usage[flavor, "memory"] = 2 << 30
    chosen = targets(info, Assignment(pod_sets=pod_sets, usage=usage), cluster(QUEUES, using=using))
    assert sorted(each.info.uid for each in chosen) == ["low-alpha", "low-beta"]


def test_preempt_newer_workloads_with_the_same_priority() -> None:
    using = [
        parsed("wl1 preventStarvation 2 cpu=2"),
        parsed("wl2 preventStarvation 1 cpu=2", at="2026-11-23T12:00:01Z"),
        parsed("wl3 preventStarvation 1 cpu=2"),
    ]
    info = pending("in", "preventStarvation", 1, "cpu=2", created="2026-11-23T11:59:45Z")
    chosen = targets(info, _assignment(info, CASES[0]), cluster(QUEUES, using=using))
    assert [each.info.uid for each in chosen] == ["wl2"]
