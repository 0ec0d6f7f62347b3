"""What one scheduling cycle decides: cases of TestSchedule in kueue v0.19.2 pkg/scheduler/scheduler_test.go, by their
names there.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.kueue import cycle
from tests.support.kueue_objects import cluster_queue, flavor, group, quota
from tests.support.kueue_snapshots import cluster, parsed, pending

_NEEDS = "couldn't assign flavors to pod set main: insufficient unused quota for"
_LATER = "2026-11-23T12:00:01Z"


def _policies(within: str = "Never", reclaim: str = "Never", **more: Obj) -> Obj:
    return {"preemption": {"withinClusterQueue": within, "reclaimWithinCohort": reclaim, **more}}


ENG = (
    cluster_queue("sales", group(default=quota("cpu", 50, 0))),
    cluster_queue("eng-alpha", group(on_demand=quota("cpu", 50, 50), spot=quota("cpu", 100, 0)), cohort="eng"),
    cluster_queue(
        "eng-beta",
        group(on_demand=quota("cpu", 50, 10), spot=quota("cpu", 0, 100)),
        group(model_a=quota("example.com/gpu", 20, 0)),
        cohort="eng",
        **_policies("LowerPriority", "Any"),
    ),
    cluster_queue("lend-a", group(default=quota("cpu", 3, None, 2)), cohort="lend"),
    cluster_queue("lend-b", group(default=quota("cpu", 2, None, 2)), cohort="lend"),
)
_GAMMA = cluster_queue("eng-gamma", group(on_demand=quota("cpu", 50, 10), spot=quota("cpu", 0, 100)), cohort="eng")
_CO = tuple(
    cluster_queue(
        name,
        group(default=[quota("r1", 10, 10), quota("r2", 10, 10)]),
        cohort="co",
        **_policies("LowerPriority", "Any"),
    )
    for name in ("cq1", "cq2", "cq3")
)


def _root(reclaim: str) -> tuple[Obj, Obj]:
    return (
        cluster_queue("A", group(on_demand=quota("gpu", 2)), cohort="root", **_policies(reclaim=reclaim)),
        cluster_queue("B", group(on_demand=quota("gpu", 0)), cohort="root"),
    )


_BORROWS = {"borrowWithinCohort": {"policy": "LowerPriority"}}
_SHARED = (
    cluster_queue("cq_shared", group(default=quota("cpu", 4, 0)), cohort="pwb"),
    cluster_queue(
        "cq_a", group(default=quota("cpu", 0, 3)), cohort="pwb", **_policies(reclaim="LowerPriority", **_BORROWS)
    ),
    cluster_queue(
        "cq_b", group(default=quota("cpu", 0)), cohort="pwb", **_policies(reclaim="LowerPriority", **_BORROWS)
    ),
)


@dataclass(frozen=True, slots=True)
class Case:
    """`heads`: `NAME QUEUE PRIORITY REQUESTS [TIME]`; `expected`: outcome by name, with flavors or targets."""

    name: str
    queues: tuple[Obj, ...]
    heads: str
    expected: str
    using: str = ""
    messages: tuple[tuple[str, str], ...] = ()


CASES = (
    Case(
        "workload fits in single clusterQueue, with check state ready",
        ENG,
        "foo sales 0 cpu=10",
        "foo admitted default",
    ),
    Case(
        "single clusterQueue full",
        ENG,
        "new sales 0 cpu=11",
        "new waiting",
        "assigned sales 0 cpu=40",
        (("new", f"{_NEEDS} cpu in flavor default, 1 more needed"),),
    ),
    Case(
        "admit in different cohorts",
        ENG,
        "new sales 0 cpu=1; new2 eng-alpha 0 cpu=51",
        "new admitted default; new2 admitted on-demand",
    ),
    Case(
        "admit in same cohort with no borrowing",
        ENG,
        "a eng-alpha 0 cpu=40; b eng-beta 0 cpu=40",
        "a admitted on-demand; b admitted on-demand",
    ),
    Case(
        "cannot borrow if cohort was assigned and would result in overadmission",
        ENG,
        "a eng-alpha 0 cpu=45; b eng-beta 0 cpu=56",
        "a admitted on-demand; b skipped",
        "",
        (("b", "Workload no longer fits after processing another workload"),),
    ),
    Case(
        "can borrow if cohort was assigned and will not result in overadmission",
        ENG,
        "a eng-alpha 0 cpu=45; b eng-beta 0 cpu=55",
        "a admitted on-demand; b admitted on-demand",
    ),
    Case(
        "workload exceeds lending limit when borrow in cohort",
        ENG,
        "b lend-b 0 cpu=3",
        "b waiting",
        "a lend-b 0 cpu=2",
        (("b", f"{_NEEDS} cpu in flavor default, 1 more needed"),),
    ),
    Case(
        "preempt workloads in ClusterQueue and cohort",
        ENG,
        "preemptor eng-beta 0 cpu=20",
        "preemptor preempting borrower:InCohortReclamation low-2:InClusterQueue",
        "use-all-spot eng-alpha 0 spot/cpu=100; low-1 eng-beta -1 on-demand/cpu=30; "
        "low-2 eng-beta -2 on-demand/cpu=10; borrower eng-alpha 0 on-demand/cpu=60",
    ),
    Case(
        "no overadmission while borrowing",
        (*ENG, _GAMMA),
        f"new eng-beta 0 cpu=50; new-alpha eng-alpha 0 cpu=1 {_LATER}; new-gamma eng-gamma 0 cpu=50 {_LATER}",
        "new admitted on-demand; new-alpha admitted on-demand; new-gamma waiting",
        "existing eng-gamma 0 on-demand/cpu=51; other eng-gamma 0 spot/cpu=100",
        (
            (
                "new-gamma",
                f"{_NEEDS} cpu in flavor on-demand, 41 more needed, insufficient unused quota for cpu in flavor spot, "
                "50 more needed",
            ),
        ),
    ),
    Case(
        "two workloads can borrow different resources from the same flavor in the same cycle",
        _CO,
        "wl1 cq1 -1 r1=16; wl2 cq2 -2 r2=16",
        "wl1 admitted default; wl2 admitted default",
    ),
    Case(
        "two workloads can borrow the same resources from the same flavor in the same cycle if fits in the cohort "
        "quota",
        _CO,
        "wl1 cq1 -1 r1=16; wl2 cq2 -2 r1=14",
        "wl1 admitted default; wl2 admitted default",
    ),
    Case(
        "only one workload can borrow one resources from the same flavor in the same cycle if cohort quota cannot fit",
        _CO,
        "wl1 cq1 -1 r1=16; wl2 cq2 -2 r1=16",
        "wl1 admitted default; wl2 skipped",
    ),
    Case(
        "preemption while borrowing, workload waiting for preemption should not block a borrowing workload in another "
        "CQ",
        _SHARED,
        f"a cq_a 0 cpu=3; b cq_b 0 cpu=1 {_LATER}",
        "a waiting; b admitted default",
        "admitted_a cq_a 0 cpu=2",
        (("a", f"{_NEEDS} cpu in flavor default, 2 more needed"),),
    ),
    Case(
        "capacity not blocked when lending clusterqueue can reclaim (ReclaimWithinCohort=Any)",
        _root("Any"),
        f"a2 A 0 gpu=2; b1 B 0 gpu=1 {_LATER}",
        "a2 waiting; b1 admitted on-demand",
        "a1 A 0 on-demand/gpu=1",
    ),
    Case(
        "capacity blocked when lending clusterqueue not guaranteed to reclaim (ReclaimWithinCohort=LowerPriority)",
        _root("LowerPriority"),
        f"a2 A 0 gpu=2; b1 B 0 gpu=1 {_LATER}",
        "a2 waiting; b1 skipped",
        "a1 A 0 on-demand/gpu=1",
    ),
    Case(
        "capacity blocked when lending clusterqueue not guaranteed to reclaim (ReclaimWithinCohort=Never)",
        _root("Never"),
        f"a2 A 0 gpu=2; b1 B 0 gpu=1 {_LATER}",
        "a2 waiting; b1 skipped",
        "a1 A 0 on-demand/gpu=1",
    ),
)


def _shown(entry: cycle.Entry) -> str:
    words = [entry.info.uid, entry.outcome]
    if entry.outcome == "admitted":
        words += sorted({choice.flavor for each in entry.assignment.pod_sets for choice in each.choices.values()})
    words += sorted(f"{target.info.uid}:{target.reason}" for target in entry.targets)
    return " ".join(words)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cycle(case: Case) -> None:
    heads = []
    for line in case.heads.split("; "):
        name, queue, priority, requests, *created = line.split()
        heads.append(pending(name, queue, int(priority), requests, **({"created": created[0]} if created else {})))
    flavors = [flavor("spot", nodeTaints=[]), flavor("on-demand")]
    using = [parsed(line) for line in case.using.split("; ") if line]
    entries = cycle.run(heads, cluster(case.queues, using=using, flavors=flavors))
    assert sorted(map(_shown, entries)) == sorted(case.expected.split("; "))
    for name, message in case.messages:
        (entry,) = (each for each in entries if each.info.uid == name)
        assert entry.message == message


def test_the_order_is_no_borrowing_then_priority_then_age() -> None:
    """scheduler_test.go, TestEntryOrdering."""
    queues = [
        cluster_queue(name, group(default=quota("cpu", nominal)), cohort="c")
        for name, nominal in (("a", 4), ("b", 4), ("c", 4), ("d", 0))
    ]
    heads = [
        pending("young", "a", 0, "cpu=1", created=_LATER),
        pending("old", "b", 0, "cpu=1"),
        pending("high", "c", 5, "cpu=1", created=_LATER),
        pending("borrower", "d", 9, "cpu=1"),
    ]
    assert [each.info.uid for each in cycle.run(heads, cluster(queues))] == ["high", "old", "young", "borrower"]
