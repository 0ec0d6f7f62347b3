"""Queues, cohorts and workloads as one scheduling cycle sees them, from the API's objects.

Sources: kueue pkg/cache/scheduler/{snapshot,clusterqueue}.go, pkg/workload/workload.go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    condition_of,
    is_true,
    name_of,
    status_of,
    uid_of,
)
from bastion.emulators.kubernetes.kueue import amounts
from bastion.emulators.kubernetes.kueue.quotas import Amounts, FlavorResource, Node, Quota


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """`requests`: of all its pods; `flavors` by resource, if quota is reserved."""

    name: str
    count: int
    template: Obj
    requests: Mapping[str, int]
    flavors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Info:
    """A Workload. `queue`: its ClusterQueue; `usage`: of the quota that it has, since `reserved_at`."""

    obj: Obj
    queue: str
    priority: int
    timestamp: str
    pod_sets: tuple[PodSet, ...]
    shape: str
    usage: Amounts
    reserved_at: str = ""

    @property
    def uid(self) -> str:
        return uid_of(self.obj)

    @property
    def evicted(self) -> bool:
        return is_true(self.obj, "Evicted")


@dataclass(frozen=True, slots=True)
class Group:
    resources: tuple[str, ...]
    flavors: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class Queue(Node):
    """A ClusterQueue. `workloads` by uid: those with quota."""

    spec: Obj
    groups: tuple[Group, ...] = ()
    workloads: dict[str, Info] = field(default_factory=dict)

    @property
    def strict(self) -> bool:
        return self.spec.get("queueingStrategy") == "StrictFIFO"

    def policy(self, name: str) -> str:
        return str((self.spec.get("preemption") or {}).get(name, "Never"))

    def group(self, resource: str) -> Group | None:
        return next((group for group in self.groups if resource in group.resources), None)

    def put(self, info: Info) -> None:
        self.workloads[info.uid] = info
        self.add(info.usage)

    def take(self, info: Info) -> None:
        del self.workloads[info.uid]
        self.remove(info.usage)


@dataclass(kw_only=True)
class Snapshot:
    """`queues`: those that may admit; `members` of a cohort by its name: all of them."""

    queues: dict[str, Queue]
    flavors: Mapping[str, Obj]
    members: Mapping[str, list[Queue]]


def snapshot(
    queues: Iterable[Obj], cohorts: Iterable[Obj], flavors: Iterable[Obj], workloads: Iterable[Info], active: set[str]
) -> Snapshot:
    """`workloads`: those with quota; `active`: the ClusterQueues that may admit."""
    by_name: dict[str, Queue] = {}
    shared = {name_of(each): Node(name=name_of(each), quotas=_quotas(each["spec"])) for each in _with_spec(cohorts)}
    members: dict[str, list[Queue]] = {}
    for each in queues:
        spec = each.get("spec") or {}
        queue = Queue(name=name_of(each), spec=spec, quotas=_quotas(spec), groups=_groups(spec))
        by_name[queue.name] = queue
        if cohort := spec.get("cohortName"):
            queue.join(shared.setdefault(cohort, Node(name=cohort)))
            members.setdefault(cohort, []).append(queue)
    for info in workloads:
        if (found := by_name.get(info.queue)) is not None:
            found.put(info)
    return Snapshot(
        queues={name: queue for name, queue in by_name.items() if name in active},
        flavors={name_of(each): each for each in flavors},
        members={cohort: [queue for queue in listed if queue.name in active] for cohort, listed in members.items()},
    )


def _with_spec(objects: Iterable[Obj]) -> list[Obj]:
    return [{**each, "spec": each.get("spec") or {}} for each in objects]


def _quotas(spec: Obj) -> dict[FlavorResource, Quota]:
    found = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for each in flavor["resources"]:
                name = each["name"]
                limits = [
                    None if each.get(limit) is None else amounts.amount(name, each[limit])
                    for limit in ("borrowingLimit", "lendingLimit")
                ]
                found[flavor["name"], name] = Quota(amounts.amount(name, each["nominalQuota"]), *limits)
    return found


def _groups(spec: Obj) -> tuple[Group, ...]:
    return tuple(
        Group(tuple(group["coveredResources"]), tuple(flavor["name"] for flavor in group["flavors"]))
        for group in spec.get("resourceGroups") or ()
    )


def info_of(workload: Obj, queue: str) -> Info:
    """A Workload of a ClusterQueue, with the usage of its admission if quota is reserved."""
    admission = status_of(workload).get("admission") or {}
    assigned = {each["name"]: each for each in admission.get("podSetAssignments") or ()}
    reclaimable = {each["name"]: each["count"] for each in status_of(workload).get("reclaimablePods") or ()}
    pod_sets = []
    for each in workload["spec"].get("podSets") or ():
        count = each["count"] - min(reclaimable.get(each["name"], 0), each["count"])
        spec = (each["template"].get("spec")) or {"containers": []}
        requests = {name: max(0, amount) * count for name, amount in amounts.of_pod(spec).items()}
        own = PodSet(name=each["name"], count=count, template=each["template"], requests=requests)
        if (assignment := assigned.get(each["name"])) is not None:
            own = replace(own, flavors=assignment.get("flavors") or {}, requests=_assigned(assignment, own))
        pod_sets.append(own)
    reserved = condition_of(workload, "QuotaReserved")
    return Info(
        obj=workload,
        queue=admission.get("clusterQueue") or queue,
        priority=workload["spec"].get("priority", 0),
        timestamp=queue_timestamp(workload),
        pod_sets=tuple(pod_sets),
        shape=_shape(workload["spec"].get("priority", 0), pod_sets),
        usage=_usage(pod_sets),
        reserved_at=reserved["lastTransitionTime"] if reserved is not None and reserved["status"] == "True" else "",
    )


def _usage(pod_sets: Iterable[PodSet]) -> Amounts:
    total: dict[FlavorResource, int] = {}
    for pod_set in pod_sets:
        for resource, amount in pod_set.requests.items():
            if flavor := pod_set.flavors.get(resource):
                total[flavor, resource] = total.get((flavor, resource), 0) + amount
    return total


def _assigned(assignment: Obj, own: PodSet) -> dict[str, int]:
    """totalRequestsFromAdmission: pods that have ended give their share back."""
    usage = {name: amounts.amount(name, quantity) for name, quantity in (assignment.get("resourceUsage") or {}).items()}
    count = assignment.get("count", own.count)
    if own.count < count:
        return {name: amount // count * own.count for name, amount in usage.items()}
    return usage


def queue_timestamp(workload: Obj) -> str:
    """GetQueueOrderTimestamp. Times of the API compare as texts."""
    evicted = condition_of(workload, "Evicted")
    if (
        evicted is not None
        and evicted["status"] == "True"
        and evicted["reason"] in ("AdmissionCheck", "PodsReadyTimeout")
    ):
        return str(evicted["lastTransitionTime"])
    return str(workload["metadata"]["creationTimestamp"])


def _shape(priority: int, pod_sets: Iterable[PodSet]) -> str:
    """computeSchedulingHash: Workloads of one shape are admitted or not for the same reasons."""
    shapes = [[each.name, each.count, dict(each.requests), _relevant(each.template)] for each in pod_sets]
    return hashlib.sha256(json.dumps([priority, shapes], sort_keys=True).encode()).hexdigest()[:16]


def _relevant(template: Obj) -> Obj:
    """pkg/util/pod, SpecShape."""
    spec = template.get("spec") or {}
    return {name: spec[name] for name in ("nodeSelector", "affinity", "tolerations") if name in spec}
