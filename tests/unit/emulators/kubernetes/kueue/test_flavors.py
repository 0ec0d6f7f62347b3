"""Which flavors a workload gets: cases of TestAssignFlavors in kueue v0.19.2
pkg/scheduler/flavorassigner/flavorassigner_test.go, by their names there.

As there, preemption is always possible unless the case says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.kueue.flavors import Assignment, Mode, assign
from bastion.emulators.kubernetes.kueue.quotas import FlavorResource
from bastion.emulators.kubernetes.kueue.snapshot import Info, info_of
from tests.support.kueue_objects import cluster_queue, flavor, group, quota
from tests.support.kueue_snapshots import cluster, pod_set, reserved, workload

_SPOT = {"key": "instance", "value": "spot", "effect": "NoSchedule"}
_TOLERATES = {**_SPOT, "operator": "Equal"}
FLAVORS = (
    flavor("default"),
    flavor("one", labels={"type": "one"}),
    flavor("two", labels={"type": "two"}),
    flavor("tainted", nodeTaints=[_SPOT]),
    flavor("taint-and-toleration", nodeTaints=[_SPOT], tolerations=[_TOLERATES]),
    flavor("label-x-a", labels={"x": "a"}),
    flavor("label-xy-b", labels={"x": "b", "y": "k"}),
)
_NEXT = {"flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"}}
_STOP = {"flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}}
_TOO_MUCH = "previously considered podsets requests ({}) + current podset request ({}) > maximum capacity ({})"


@dataclass(frozen=True, slots=True)
class Case:
    """`used`: of the queue, then of the other one; `choices`: flavors by resource for each pod set."""

    name: str
    pods: list[Obj]
    queue: Obj
    mode: Mode
    choices: list[dict[str, str]] = field(default_factory=list)
    message: str = ""
    used: str = ""
    other: Obj | None = None
    other_used: str = ""
    borrowing: int = 0
    oracle: Mode = Mode.PREEMPT
    reclaimable: int = 0


def _pods(name: str = "main", count: int = 1, *, spec: Obj | None = None, **requests: str) -> Obj:
    return pod_set(name, requests, count=count, **(spec or {}))


def _queue(*groups: Obj, cohort: str = "", **spec: Obj) -> Obj:
    return cluster_queue("cq", *groups, cohort=cohort, **spec)


def _other(*groups: Obj) -> Obj:
    return cluster_queue("other", *groups, cohort="co")


def _affinity(key: str, *values: str) -> Obj:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": needed}}


_ONE_TWO = group(one=quota("cpu", 4), two=quota("cpu", 4))
_PODS_ONE_TWO = group(one=[quota("pods", 10), quota("cpu", 10)], two=[quota("pods", 10), quota("cpu", 10)])


def _borrowable(two: int) -> Obj:
    return group(one=[quota("pods", 10), quota("cpu", 10, 1)], two=[quota("pods", 10), quota("cpu", two)])


def _lendable(two: int) -> Obj:
    return group(
        one=[quota("pods", 10), quota("cpu", 10, None, 1)], two=[quota("pods", 10), quota("cpu", two, None, 0)]
    )


_LENT = group(one=quota("cpu", 1))

CASES = (
    Case(
        "single flavor, fits",
        [_pods(cpu="1", memory="1Mi")],
        _queue(group(default=[quota("cpu", 1), quota("memory", "2Mi")])),
        Mode.FIT,
        [{"cpu": "default", "memory": "default"}],
    ),
    Case(
        "single flavor, fits tainted flavor",
        [_pods(cpu="1", spec={"tolerations": [_TOLERATES]})],
        _queue(group(tainted=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "tainted"}],
    ),
    Case(
        "single flavor, fits tainted flavor with toleration",
        [_pods(cpu="1")],
        _queue(group(taint_and_toleration=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "taint-and-toleration"}],
    ),
    Case(
        "single flavor, used resources, doesn't fit",
        [_pods(cpu="2")],
        _queue(group(default=quota("cpu", 4))),
        Mode.PREEMPT,
        [{"cpu": "default"}],
        "insufficient unused quota for cpu in flavor default, 1 more needed",
        used="default/cpu=3",
    ),
    Case(
        "multiple resource groups, fits",
        [_pods(cpu="3", memory="10Mi")],
        _queue(
            group(one=quota("cpu", 2), two=quota("cpu", 4)),
            group(b_one=quota("memory", "1Gi"), b_two=quota("memory", "5Gi")),
        ),
        Mode.FIT,
        [{"cpu": "two", "memory": "b-one"}],
    ),
    Case(
        "multiple resource groups, one could fit with preemption, other doesn't fit",
        [_pods(cpu="3", memory="10Mi")],
        _queue(group(one=quota("cpu", 3)), group(b_one=quota("memory", "1Mi"))),
        Mode.NO_FIT,
        [{}],
        f"insufficient quota for memory in flavor b-one, {_TOO_MUCH.format('0', '10Mi', '1Mi')}",
        used="one/cpu=1",
    ),
    Case(
        "multiple resources in a group, doesn't fit",
        [_pods(cpu="3", memory="10Mi")],
        _queue(
            group(one=[quota("cpu", 2), quota("memory", "1Gi")], two=[quota("cpu", 4), quota("memory", "5Mi")]),
        ),
        Mode.NO_FIT,
        [{}],
        f"insufficient quota for cpu in flavor one, {_TOO_MUCH.format('0', '3', '2')}, "
        f"insufficient quota for memory in flavor two, {_TOO_MUCH.format('0', '10Mi', '5Mi')}",
    ),
    Case(
        "multiple flavors, fits while skipping tainted flavor",
        [_pods(cpu="3")],
        _queue(group(tainted=quota("cpu", 4), two=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "two"}],
    ),
    Case(
        "multiple flavors, fits a node selector",
        [_pods(cpu="1", spec={"nodeSelector": {"type": "two", "ignored1": "foo"}, **_affinity("ignored2", "bar")})],
        _queue(_ONE_TWO),
        Mode.FIT,
        [{"cpu": "two"}],
    ),
    Case(
        "multiple flavors, fits with node affinity",
        [_pods(cpu="1", spec=_affinity("type", "two"))],
        _queue(_ONE_TWO),
        Mode.FIT,
        [{"cpu": "two"}],
    ),
    Case(
        "multiple flavors with different label keys, selector only uses flavor's own keys",
        [_pods(cpu="1", spec={"nodeSelector": {"x": "a", "y": "g"}})],
        _queue(group(label_x_a=quota("cpu", 4), label_xy_b=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "label-x-a"}],
    ),
    Case(
        "labelless flavor in group with labeled flavor, workload uses labeled selector",
        [_pods(cpu="1", spec={"nodeSelector": {"type": "two"}})],
        _queue(group(default=quota("cpu", 4), two=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "default"}],
    ),
    Case(
        "multiple flavors, doesn't fit node affinity",
        [_pods(cpu="1", spec=_affinity("type", "three"))],
        _queue(_ONE_TWO),
        Mode.NO_FIT,
        [{}],
        "flavor one doesn't match node affinity, flavor two doesn't match node affinity",
    ),
    Case(
        "multiple specs, fit different flavors",
        [_pods("driver", cpu="5"), _pods("worker", cpu="3")],
        _queue(group(one=quota("cpu", 4), two=quota("cpu", 10))),
        Mode.FIT,
        [{"cpu": "two"}, {"cpu": "one"}],
    ),
    Case(
        "multiple specs, fits borrowing",
        [_pods("driver", cpu="4", memory="1Gi"), _pods("worker", cpu="6", memory="4Gi")],
        _queue(group(default=[quota("cpu", 2, 98), quota("memory", "2Gi")]), cohort="co"),
        Mode.FIT,
        [{"cpu": "default", "memory": "default"}, {"cpu": "default", "memory": "default"}],
        other=_other(group(default=[quota("cpu", 198), quota("memory", "198Gi")])),
        borrowing=1,
    ),
    Case(
        "not enough space to borrow",
        [_pods(cpu="2")],
        _queue(group(one=quota("cpu", 1)), cohort="co"),
        Mode.NO_FIT,
        [{}],
        f"insufficient quota for cpu in flavor one, {_TOO_MUCH.format('0', '2', '1')}",
        other=_other(group(one=quota("cpu", 10, None, 0))),
        other_used="one/cpu=9",
    ),
    Case(
        "past min, but can preempt in ClusterQueue",
        [_pods(cpu="2")],
        _queue(group(one=quota("cpu", 2))),
        Mode.PREEMPT,
        [{"cpu": "one"}],
        "insufficient unused quota for cpu in flavor one, 1 more needed",
        used="one/cpu=1",
    ),
    Case(
        "resource not listed in clusterQueue",
        [_pods(**{"example.com/gpu": "2"})],
        _queue(group(one=quota("cpu", 4))),
        Mode.NO_FIT,
        [{}],
        "resource example.com/gpu unavailable in ClusterQueue",
    ),
    Case(
        "zero resource request not in clusterQueue should succeed",
        [_pods(cpu="1", **{"example.com/gpu": "0"})],
        _queue(group(one=quota("cpu", 4))),
        Mode.FIT,
        [{"cpu": "one"}],
    ),
    Case(
        "num pods fit",
        [_pods(count=3, cpu="1")],
        _queue(group(default=[quota("pods", 3), quota("cpu", 10)])),
        Mode.FIT,
        [{"cpu": "default", "pods": "default"}],
    ),
    Case(
        "num pods don't fit",
        [_pods(count=3, cpu="1")],
        _queue(group(default=[quota("pods", 2), quota("cpu", 10)])),
        Mode.NO_FIT,
        [{}],
        f"insufficient quota for pods in flavor default, {_TOO_MUCH.format('0', '3', '2')}",
    ),
    Case(
        "with reclaimable pods; reclaimablePods on",
        [_pods(count=5, cpu="1")],
        _queue(group(default=[quota("pods", 3), quota("cpu", 10)])),
        Mode.FIT,
        [{"cpu": "default", "pods": "default"}],
        reclaimable=2,
    ),
    Case(
        "preempt before try next flavor",
        [_pods(cpu="9")],
        _queue(_PODS_ONE_TWO, **_STOP),
        Mode.PREEMPT,
        [{"cpu": "one", "pods": "one"}],
        "insufficient unused quota for cpu in flavor one, 1 more needed",
        used="one/cpu=2",
    ),
    Case(
        "preempt try next flavor",
        [_pods(cpu="9")],
        _queue(_PODS_ONE_TWO),
        Mode.FIT,
        [{"cpu": "two", "pods": "two"}],
        used="one/cpu=2",
    ),
    Case(
        "borrow try next flavor, found the first flavor",
        [_pods(cpu="9")],
        _queue(_borrowable(1), cohort="co", **_NEXT),
        Mode.FIT,
        [{"cpu": "one", "pods": "one"}],
        used="one/cpu=2",
        other=_other(_LENT),
        borrowing=1,
    ),
    Case(
        "borrow try next flavor, found the second flavor",
        [_pods(cpu="9")],
        _queue(_borrowable(10), cohort="co", **_NEXT),
        Mode.FIT,
        [{"cpu": "two", "pods": "two"}],
        used="one/cpu=2",
        other=_other(_LENT),
    ),
    Case(
        "borrow before try next flavor",
        [_pods(cpu="9")],
        _queue(_borrowable(10), cohort="co"),
        Mode.FIT,
        [{"cpu": "one", "pods": "one"}],
        used="one/cpu=2",
        other=_other(_LENT),
        borrowing=1,
    ),
    Case(
        "lend try next flavor, found the second flavor",
        [_pods(cpu="9")],
        _queue(_lendable(10), cohort="co", **_NEXT),
        Mode.FIT,
        [{"cpu": "two", "pods": "two"}],
        used="one/cpu=2",
        other=_other(_LENT),
    ),
    Case(
        "lend try next flavor, found the first flavor",
        [_pods(cpu="9")],
        _queue(_lendable(1), cohort="co", **_NEXT),
        Mode.FIT,
        [{"cpu": "one", "pods": "one"}],
        used="one/cpu=2",
        other=_other(_LENT),
        borrowing=1,
    ),
    Case(
        "cannot preempt in cohort (oracle returns None) for the first flavor, tries the second flavor (which fits)",
        [_pods(cpu="2")],
        _queue(
            group(one=quota("cpu", 0, 2), two=quota("cpu", 0, 2)),
            cohort="co",
            preemption={"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": {"policy": "LowerPriority"}},
            **_STOP,
        ),
        Mode.FIT,
        [{"cpu": "two"}],
        other=_other(group(one=quota("cpu", 2), two=quota("cpu", 2))),
        other_used="one/cpu=2",
        borrowing=1,
        oracle=Mode.NO_CANDIDATES,
    ),
)


def _assign(case: Case) -> Assignment:
    status = {"reclaimablePods": [{"name": "main", "count": case.reclaimable}]} if case.reclaimable else {}
    info = info_of(workload("in", *case.pods, status=status), "cq")
    using: list[Info] = []
    for queue, usage in (("cq", case.used), ("other", case.other_used)):
        using += [reserved(f"in-{queue}", queue, 0, usage)] if usage else []
    queues = [case.queue, *([case.other] if case.other else [])]

    def oracle(_info: Info, _resource: FlavorResource, _amount: int) -> tuple[Mode, int]:
        return case.oracle, 0

    return assign(info, cluster(queues, using=using, flavors=FLAVORS), oracle)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_assignment(case: Case) -> None:
    found = _assign(case)
    assert found.mode is case.mode
    chosen = [{name: choice.flavor for name, choice in each.choices.items()} for each in found.pod_sets]
    assert chosen == case.choices
    assert found.borrowing == case.borrowing
    prefix = "couldn't assign flavors to pod set main: "
    assert found.message() == (prefix + case.message if case.message else "")


def test_a_taint_that_is_not_tolerated_is_named() -> None:
    found = _assign(Case("", [_pods(cpu="1")], _queue(group(tainted=quota("cpu", 4))), Mode.NO_FIT))
    assert found.message().endswith(": untolerated taint {instance spot NoSchedule <nil>} in flavor tainted")
