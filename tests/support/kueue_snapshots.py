"""Queues and workloads in short texts, for the pure parts of the emulated Kueue.

A workload is `NAME QUEUE PRIORITY [FLAVOR/]RESOURCE=QUANTITY,...`; the flavor is `default` where none is named.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.kueue.snapshot import Info, Snapshot, info_of, snapshot
from tests.support.kueue_objects import flavor, kueue_object

NOW = "2026-11-23T12:00:00Z"


def pod_set(name: str, requests: dict[str, str], *, count: int = 1, **pod: object) -> Obj:
    container = {"name": "host", "resources": {"requests": requests}}
    return {"name": name, "count": count, "template": {"spec": {"containers": [container], **pod}}}


def workload(
    name: str,
    *pod_sets: Obj,
    priority: int = 0,
    created: str = NOW,
    status: Obj | None = None,
) -> Obj:
    made = kueue_object("Workload", name, spec={"priority": priority, "podSets": list(pod_sets)}, status=status or {})
    made["metadata"].update(namespace="default", uid=name, creationTimestamp=created, generation=1)
    return made


def reserved(name: str, queue: str, priority: int, usage: str, *, created: str = NOW, at: str = NOW) -> Info:
    """A workload with quota."""
    parts = [part.partition("=") for part in usage.split(",")]
    flavors, amounts = {}, {}
    for key, _, quantity in parts:
        flavor_name, _, resource = key.rpartition("/")
        flavors[resource], amounts[resource] = flavor_name or "default", quantity
    assignment = {"name": "main", "flavors": flavors, "resourceUsage": amounts, "count": 1}
    status: Obj = {
        "admission": {"clusterQueue": queue, "podSetAssignments": [assignment]},
        "conditions": [
            {"type": "QuotaReserved", "status": "True", "lastTransitionTime": at, "reason": "", "message": ""}
        ],
    }
    return info_of(workload(name, pod_set("main", amounts), priority=priority, created=created, status=status), queue)


def parsed(line: str, **times: str) -> Info:
    name, queue, priority, usage = line.split()
    return reserved(name, queue, int(priority), usage, **times)


def pending(name: str, queue: str, priority: int, requests: str, *, created: str = NOW) -> Info:
    amounts = {key: quantity for key, _, quantity in (part.partition("=") for part in requests.split(","))}
    return info_of(workload(name, pod_set("main", amounts), priority=priority, created=created), queue)


def cluster(
    queues: Iterable[Obj],
    *,
    using: Iterable[Info] = (),
    cohorts: Iterable[Obj] = (),
    flavors: Iterable[Obj] = (),
) -> Snapshot:
    """All queues are active; each flavor that they name exists."""
    queues = list(queues)
    named = {each["name"] for queue in queues for group in queue["spec"]["resourceGroups"] for each in group["flavors"]}
    known = {each["metadata"]["name"]: each for each in flavors}
    made = [known.get(name) or flavor(name) for name in sorted(named)]
    return snapshot(queues, cohorts, made, using, {queue["metadata"]["name"] for queue in queues})
