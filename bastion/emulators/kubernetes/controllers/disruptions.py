"""Pods that lose their node: PodGC (pkg/controller/podgc) and taint eviction (pkg/controller/tainteviction).

A pod on a node that does not answer is deleted, and stays Terminating until the Node object is gone: nobody else can
say that its processes have ended.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass

from bastion.emulators.kubernetes.client import ApiError, Key, Obj, key
from bastion.emulators.kubernetes.controllers.api_objects import (
    DISRUPTION_TARGET,
    NODE,
    POD,
    is_deleting,
    is_terminal,
    name_of,
    namespace_of,
    node_name_of,
    parse_time,
    path_of,
    status_of,
    timestamp,
)
from bastion.emulators.kubernetes.controllers.cluster import (
    NOTHING,
    Cluster,
    Event,
    Index,
    Outcome,
    Write,
    delete,
)
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop
from bastion.emulators.kubernetes.controllers.selectors import tolerated


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSettings:
    """Times of the cluster's own reactions; real clusters are slower.

    Attributes:
        orphaned_seconds: From the end of a Node to the end of its pods; upstream 40 to 60.
        toleration_seconds: How long a pod stays on a node that does not answer, if it does not say; upstream
            plugin/pkg/admission/defaulttolerationseconds gives each pod tolerations of 300.
    """

    orphaned_seconds: float = 1.0
    toleration_seconds: float = 300.0


def mark_disrupted(pod: Obj, reason: str, message: str, now: datetime.datetime, *, phase: str = "") -> Write:
    """Give a pod the condition DisruptionTarget, and a phase if one is named."""
    condition = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(now),
    }
    others = [each for each in status_of(pod).get("conditions") or () if each["type"] != DISRUPTION_TARGET]
    return _patch_status(pod, {"conditions": [*others, condition], **({"phase": phase} if phase else {})})


def end_orphan(pod: Obj, *, now: datetime.datetime, node_is_gone: bool) -> Outcome:
    """gcOrphaned and gcUnscheduledTerminating: fail a pod that no kubelet will end, and remove it."""
    removal = delete(pod, grace_seconds=0)
    if is_terminal(pod):
        return Outcome(writes=(removal,))
    if node_is_gone:
        mark = mark_disrupted(pod, "DeletionByPodGC", "PodGC: node no longer exists", now, phase="Failed")
    else:
        mark = _patch_status(pod, {"phase": "Failed"})
    return Outcome(writes=(mark, removal))


def evict(pod: Obj, node: Obj, *, now: datetime.datetime, default_seconds: float) -> Outcome:
    """Delete a pod that does not tolerate its node's NoExecute taints for longer (taint_eviction.go)."""
    taints = [taint for taint in (node.get("spec") or {}).get("taints") or () if taint["effect"] == "NoExecute"]
    if not taints or is_deleting(pod) or is_terminal(pod):
        return NOTHING
    left = [_left_seconds(pod, taint, now, default_seconds) for taint in taints]
    soonest = min((seconds for seconds in left if seconds is not None), default=None)
    if soonest is None:
        return NOTHING
    if soonest > 0:
        return Outcome(again_seconds=soonest)
    mark = mark_disrupted(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", now)
    words = f"Marking for deletion Pod {namespace_of(pod)}/{name_of(pod)}"
    return Outcome(writes=(mark, delete(pod)), events=(Event(about=pod, reason="TaintManagerEviction", message=words),))


def _left_seconds(pod: Obj, taint: Obj, now: datetime.datetime, default_seconds: float) -> float | None:
    """How long a pod stays yet; None: forever."""
    toleration = tolerated(taint, pod["spec"].get("tolerations") or ())
    allowed: float = 0.0
    if toleration is not None:
        if toleration.get("tolerationSeconds") is None:
            return None
        allowed = toleration["tolerationSeconds"]
    elif taint["key"] in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"):
        allowed = default_seconds
    since = parse_time(taint["timeAdded"]) if taint.get("timeAdded") else now
    return allowed - (now - since).total_seconds()


def _patch_status(pod: Obj, status: Obj) -> Write:
    # Conditions are a list, which a merge patch replaces: only this version of the pod.
    version = {"resourceVersion": pod["metadata"]["resourceVersion"]}
    return Write(method="patch", path=path_of(pod, "status"), body={"metadata": version, "status": status})


class DisruptionController:
    """Looks at each pod whose node is gone or tainted, and at pods that are deleted before they have a node."""

    def __init__(self, cluster: Cluster, settings: DisruptionSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pods = cluster.informer(POD)
        self._nodes = cluster.informer(NODE)
        self._by_node = Index(self._pods, lambda pod: (node_name_of(pod),) if node_name_of(pod) else ())
        self._missing_since: dict[str, float] = {}
        self.loop: Loop[Key] = Loop("disruption controller", self._reconcile)
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            return
        bound = bool(node_name_of(new)) and (old is None or not node_name_of(old))
        if bound or (not node_name_of(new) and is_deleting(new)):
            self.loop.add(key(new))

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        node = new or old
        assert node is not None
        if old is None or new is None or old.get("spec") != new.get("spec"):
            for pod in self._by_node.get(name_of(node)):
                self.loop.add(key(pod))

    def _reconcile(self, name: Key) -> float | None:
        pod = self._pods.get(*name)
        if pod is None:
            return None
        now = self._cluster.clock()
        node_name = node_name_of(pod)
        if not node_name:
            if is_deleting(pod):
                self._cluster.apply(end_orphan(pod, now=now, node_is_gone=False))
            return None
        node = self._nodes.get("", node_name)
        if node is not None:
            self._missing_since.pop(node_name, None)
            outcome = evict(pod, node, now=now, default_seconds=self._settings.toleration_seconds)
        else:
            missing = time.monotonic() - self._missing_since.setdefault(node_name, time.monotonic())
            if missing < self._settings.orphaned_seconds:
                return self._settings.orphaned_seconds - missing
            if self._exists(node_name):
                return self._settings.orphaned_seconds
            outcome = end_orphan(pod, now=now, node_is_gone=True)
        self._cluster.apply(outcome)
        return outcome.again_seconds

    def _exists(self, node_name: str) -> bool:
        """Ask the server: the cache may be behind."""
        try:
            self._cluster.client.get(NODE.path("", node_name))
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True
