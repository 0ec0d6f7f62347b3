"""The scheduler: binds pods to nodes, one pass over all waiting pods at a time, on the decisions of `placing`."""

from __future__ import annotations

import contextlib
import time

from bastion.emulators.kubernetes.client import ApiError, Key, Obj, Unreachable, key
from bastion.emulators.kubernetes.controllers.api_objects import (
    NODE,
    POD,
    condition_of,
    is_deleting,
    is_terminal,
    name_of,
    namespace_of,
    node_name_of,
    path_of,
    status_of,
    timestamp,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Cluster, Event, Write
from bastion.emulators.kubernetes.controllers.placing import Board, message
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop

_NAME = "default-scheduler"
_PASS = "pass"
_PASS_MAX_SECONDS = 0.5


class Scheduler:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pods = cluster.informer(POD)
        self._nodes = cluster.informer(NODE)
        # Bound by us, until the cache knows: the uid and the node.
        self._assumed: dict[Key, tuple[str, str]] = {}
        self._pass_seconds = 0.0
        self.loop: Loop[str] = Loop("scheduler", self._pass)
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        appeared = new is not None and _waits(new) and (old is None or not _waits(old))
        freed = old is not None and node_name_of(old) and not is_terminal(old) and (new is None or is_terminal(new))
        if appeared or freed:
            self._ask()

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is not None and (old is None or _offer(old) != _offer(new)):
            self._ask()

    def _ask(self) -> None:
        # A pass looks at everything: in a large cluster, it serves the changes of some time.
        self.loop.add(_PASS, after_seconds=self._pass_seconds)

    def _pass(self, _key: str) -> None:
        started = time.monotonic()
        self._place_waiting()
        self._pass_seconds = min(time.monotonic() - started, _PASS_MAX_SECONDS)

    def _place_waiting(self) -> None:
        pods = self._pods.items()
        waiting = [pod for pod in pods.values() if _waits(pod)]
        for name, (uid, _) in list(self._assumed.items()):
            known = pods.get(name)
            if known is None or uid_of(known) != uid or not _waits(known):
                del self._assumed[name]
        waiting = [pod for pod in waiting if key(pod) not in self._assumed]
        if not waiting:
            return
        board = Board(self._nodes.items().values(), pods.values())
        for name, (_, node) in self._assumed.items():
            board.place(pods[name], node)
        for pod in sorted(waiting, key=_queue_order):
            choice = board.choose(pod)
            if isinstance(choice, list):
                self._fail(pod, message(choice))
            elif self._bind(pod, choice):
                self._assumed[key(pod)] = (uid_of(pod), choice)
                board.place(pod, choice)

    def _bind(self, pod: Obj, node: str) -> bool:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            self._cluster.client.create(path_of(pod, "binding"), binding)
        except Unreachable:
            # It may be bound: the next pass must see that, or it gives the room away again.
            self._pods.resync()
            raise
        except ApiError as error:
            if error.code == 404:
                return self._assign(pod, node)
            # Bound or deleted in the meantime.
            if error.code == 409:
                return False
            raise
        return True

    def _assign(self, pod: Obj, node: str) -> bool:
        """Bind where the server has no bindings, as pkg/registry/core/pod/storage does it; False if the pod is gone.

        A server that has bindings refuses this patch.
        """
        body = {"metadata": {"uid": uid_of(pod)}, "spec": {"nodeName": node}}
        bound = self._cluster.write(Write(method="patch", path=path_of(pod), body=body))
        if bound is None:
            return False
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(self._cluster.clock()),
        }
        version = {"resourceVersion": bound["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "status": {"conditions": [condition]}}
        # A kubelet may already have written its own word.
        with contextlib.suppress(ApiError):
            self._cluster.write(Write(method="patch", path=path_of(pod, "status"), body=patch))
        return True

    def _fail(self, pod: Obj, message: str) -> None:
        """Say so on the pod, if it does not say so already (pkg/scheduler/schedule_one.go handleSchedulingFailure)."""
        known = condition_of(pod, "PodScheduled")
        if known is not None and (known["status"], known.get("message")) == ("False", message):
            return
        now = timestamp(self._cluster.clock())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": now if known is None else known.get("lastTransitionTime", now),
        }
        others = [each for each in status_of(pod).get("conditions") or () if each["type"] != "PodScheduled"]
        version = {"resourceVersion": pod["metadata"]["resourceVersion"]}
        body = {"metadata": version, "status": {"conditions": [*others, condition]}}
        try:
            self._cluster.write(Write(method="patch", path=path_of(pod, "status"), body=body))
        except ApiError as error:
            if error.code != 409:
                raise
            # Changed in the meantime: the next pass says it.
            self.loop.add(_PASS, after_seconds=0.05)
            return
        self._cluster.record(Event(about=pod, reason="FailedScheduling", message=message, warning=True))


def _waits(pod: Obj) -> bool:
    spec = pod["spec"]
    return (
        not node_name_of(pod)
        and not is_deleting(pod)
        and not is_terminal(pod)
        and not spec.get("schedulingGates")
        and spec.get("schedulerName", _NAME) == _NAME
    )


def _queue_order(pod: Obj) -> tuple[int, str, str]:
    """By priority, then age (pkg/scheduler/framework/plugins/queuesort), then name."""
    return -(pod["spec"].get("priority") or 0), pod["metadata"].get("creationTimestamp", ""), name_of(pod)


def _offer(node: Obj) -> tuple[object, ...]:
    """What of a node matters to placement."""
    return node.get("spec"), node["metadata"].get("labels"), status_of(node).get("allocatable")
