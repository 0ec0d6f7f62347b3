"""Kueue's objects, short, and a cluster with Kueue whose pods are no processes."""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import KINDS, Kind

_VERSION = "kueue.x-k8s.io/v1beta2"
TPU = "google.com/tpu"


def kueue_object(kind: str, name: str, **fields: Any) -> Obj:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": name}, **fields}


def flavor(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    return kueue_object("ResourceFlavor", name, spec={**({"nodeLabels": labels} if labels else {}), **spec})


def quota(resource: str, nominal: int | str, borrow: int | None = None, lend: int | None = None) -> Obj:
    """Of one resource in a flavor."""
    limits = {"borrowingLimit": borrow, "lendingLimit": lend}
    return {
        "name": resource,
        "nominalQuota": nominal,
        **{name: value for name, value in limits.items() if value is not None},
    }


def group(**flavors: list[Obj] | Obj) -> Obj:
    """A resource group: quotas by flavor; `_` in a flavor's name stands for `-`."""
    listed = {name.replace("_", "-"): own if isinstance(own, list) else [own] for name, own in flavors.items()}
    covered = [each["name"] for each in next(iter(listed.values()))]
    return {
        "coveredResources": covered,
        "flavors": [{"name": name, "resources": own} for name, own in listed.items()],
    }


def cluster_queue(name: str, *groups: Obj, cohort: str = "", **spec: Any) -> Obj:
    own: Obj = {"namespaceSelector": {}, "resourceGroups": list(groups), **spec}
    if cohort:
        own["cohortName"] = cohort
    return kueue_object("ClusterQueue", name, spec=own)


def local_queue(name: str, queue: str, **spec: Any) -> Obj:
    made = kueue_object("LocalQueue", name, spec={"clusterQueue": queue, **spec})
    made["metadata"]["namespace"] = "default"
    return made


def priority(name: str, value: int) -> Obj:
    return kueue_object("WorkloadPriorityClass", name, value=value)


def collection(obj: Obj) -> str:
    """The path that an object is created at."""
    kind: Kind = KINDS[obj["apiVersion"], obj["kind"]]
    return kind.path("default")
