"""What Kueue's controllers share: the caches of its kinds, changes of status, and the work to do.

All controllers run on one thread, so that none decides on what another is about to change.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bastion.emulators.kubernetes.client import ApiError, Key, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    JOB_SET,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    namespace_of,
    path_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Cluster, Event, Write
from bastion.emulators.kubernetes.kueue.conditions import Now
from bastion.emulators.kubernetes.kueue.snapshot import Info, info_of

IN_USE = "kueue.x-k8s.io/resource-in-use"
Part = Literal["job", "workload", "cycle", "queue", "local queue", "flavor"]


@dataclass(frozen=True, slots=True)
class Task:
    """What to look at: an object, or the next scheduling cycle."""

    part: Part
    key: Key = ("", "")


class State:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.job_sets = cluster.informer(JOB_SET)
        self.workloads = cluster.informer(WORKLOAD)
        self.queues = cluster.informer(CLUSTER_QUEUE)
        self.local_queues = cluster.informer(LOCAL_QUEUE)
        self.flavors = cluster.informer(RESOURCE_FLAVOR)
        self.cohorts = cluster.informer(COHORT)
        self.checks = cluster.informer(ADMISSION_CHECK)
        self.priorities = cluster.informer(WORKLOAD_PRIORITY_CLASS)
        self._infos: dict[str, tuple[str, str, Info]] = {}

    @property
    def now(self) -> Now:
        return self.cluster.clock()

    def info(self, workload: Obj, queue: str = "") -> Info:
        """A Workload as the scheduler sees it; each version is decoded once."""
        version, uid = workload["metadata"]["resourceVersion"], uid_of(workload)
        known = self._infos.get(uid)
        if known is None or known[:2] != (version, queue):
            known = self._infos[uid] = (version, queue, info_of(workload, queue))
        return known[2]

    def forget(self, workload: Obj) -> None:
        self._infos.pop(uid_of(workload), None)

    def event(self, about: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        # As long as an Event may be; kueue pkg/util/api/api.go.
        self.cluster.record(Event(about=about, reason=reason, message=message[:1024], warning=warning))

    def change_status(self, obj: Obj, change: Callable[[Obj], None]) -> Obj | None:
        """Apply a change to an object's current status; None: the object is gone. Raises ApiError."""
        while True:
            changed = copy.deepcopy(obj)
            change(changed)
            if changed.get("status") == obj.get("status"):
                return obj
            try:
                return self.cluster.write(Write(method="update", path=path_of(obj, "status"), body=changed))
            except ApiError as error:
                if error.code == 404:
                    return None
                if error.code != 409:
                    raise
            # Someone else, such as an admission check's controller, wrote in the meantime.
            fresh = self._fresh(obj)
            if fresh is None:
                return None
            obj = fresh

    def _fresh(self, obj: Obj) -> Obj | None:
        try:
            fresh = self.cluster.client.get(path_of(obj))
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        self.cluster.learn(fresh)
        return fresh if uid_of(fresh) == uid_of(obj) else None

    def update(self, obj: Obj) -> Obj | None:
        """Replace an object; None: it is gone. Raises ApiError."""
        try:
            return self.cluster.write(Write(method="update", path=path_of(obj), body=obj))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def drop_finalizer(self, obj: Obj) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        if IN_USE in finalizers:
            left = [each for each in finalizers if each != IN_USE]
            metadata = {"uid": uid_of(obj), "finalizers": left or None}
            self.cluster.write(Write(method="patch", path=path_of(obj), body={"metadata": metadata}))

    def local_queue_of(self, workload: Obj) -> Obj | None:
        return self.local_queues.get(namespace_of(workload), workload["spec"].get("queueName", ""))

    def queue_name_of(self, workload: Obj) -> str:
        """The ClusterQueue of a Workload's LocalQueue; empty: there is no LocalQueue."""
        local = self.local_queue_of(workload)
        return "" if local is None else str((local.get("spec") or {}).get("clusterQueue", ""))
