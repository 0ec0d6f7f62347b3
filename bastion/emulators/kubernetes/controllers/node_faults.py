"""Faults of nodes, as writes to the API: a spot machine is reclaimed, a machine falls silent.

A kubelet takes no orders from a node that does not answer (`is_silent`): it writes no status and removes no pods.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    NODE,
    POD,
    is_deleting,
    is_terminal,
    node_name_of,
    parse_time,
    path_of,
    status_of,
    timestamp,
)
from bastion.emulators.kubernetes.controllers.disruptions import mark_disrupted
from bastion.emulators.kubernetes.controllers.nodes import ready_condition

# GKE's taint of machines that end soon (docs "Spot VMs in GKE").
TERMINATION_TAINT = "cloud.google.com/impending-node-termination"
UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"
_TERMINATES_AT = "emulator.bastion/terminates-at"
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


def termination_of(node: Obj) -> datetime.datetime | None:
    """When the machine ends, if it was told to."""
    text = (node["metadata"].get("annotations") or {}).get(_TERMINATES_AT)
    return parse_time(text) if text else None


def is_silent(node: Obj) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint["key"] == UNREACHABLE_TAINT for taint in taints)


def preempt_node(client: ApiClient, name: str, *, now: datetime.datetime, grace_seconds: int = 15) -> None:
    """Reclaim a spot machine: its pods get SIGTERM and `grace_seconds`, then the machine is gone. Raises ApiError.

    As a graceful node shutdown (pkg/kubelet/nodeshutdown/nodeshutdown_manager.go) marks the pods. Upstream the kubelet
    ends them itself; here they are deleted with the shorter grace, so that the kubelet needs no second way. The node
    pools remove the Node when its last pod or its time has ended.
    """
    node = client.get(NODE.path("", name))
    ends = now + datetime.timedelta(seconds=grace_seconds)
    taint = {"key": TERMINATION_TAINT, "value": "", "effect": "NoSchedule", "timeAdded": timestamp(now)}
    annotations = {_TERMINATES_AT: ends.isoformat()}
    _taint(client, node, [taint], annotations)
    _set_ready(client, node, ready_condition("False", "KubeletNotReady", "node is shutting down", now))
    for pod in _pods(client, name):
        if is_terminal(pod) or not _change_pod(client, pod, lambda each: _terminated(each, now)):
            continue
        own = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if not is_deleting(pod):
            client.delete(path_of(pod), grace_seconds=min(grace_seconds, own))


def lose_node(client: ApiClient, name: str, *, now: datetime.datetime) -> None:
    """Cut a machine off, as pkg/controller/nodelifecycle sees it: its processes may go on. Raises ApiError.

    Its pods are evicted when they no longer tolerate it, and stay Terminating until `remove_node`.
    """
    node = client.get(NODE.path("", name))
    added = timestamp(now)
    ready = ready_condition("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", now)
    _set_ready(client, node, ready)
    taint = {"key": UNREACHABLE_TAINT, "timeAdded": added}
    _taint(client, node, [{**taint, "effect": effect} for effect in ("NoSchedule", "NoExecute")], {})
    for pod in _pods(client, name):
        _change_pod(client, pod, lambda each: _unready(each, added))


def remove_node(client: ApiClient, name: str) -> None:
    """Remove a machine at once; its pods follow. Raises ApiError."""
    client.delete(NODE.path("", name))


def _terminated(pod: Obj, now: datetime.datetime) -> Obj:
    return mark_disrupted(pod, "TerminationByKubelet", _SHUTDOWN, now).body


def _unready(pod: Obj, at: str) -> Obj:
    unready = {"status": "False", "lastTransitionTime": at}
    conditions = status_of(pod).get("conditions") or []
    changed = [{**each, **unready} if each["type"] == "Ready" else each for each in conditions]
    version = {"resourceVersion": pod["metadata"]["resourceVersion"]}
    return {"metadata": version, "status": {"conditions": changed}}


def _change_pod(client: ApiClient, pod: Obj, patch: Callable[[Obj], Obj]) -> bool:
    """Patch the status of a pod that others may change meanwhile; False if it is gone."""
    while True:
        try:
            client.patch(path_of(pod, "status"), patch(pod))
        except ApiError as error:
            if error.code == 404:
                return False
            if error.code != 409:
                raise
        else:
            return True
        try:
            pod = client.get(path_of(pod))
        except ApiError as error:
            if error.code == 404:
                return False
            raise


def _taint(client: ApiClient, node: Obj, taints: list[Obj], annotations: dict[str, str]) -> None:
    old = (node.get("spec") or {}).get("taints") or []
    patch: Obj = {"spec": {"taints": [*old, *taints]}}
    if annotations:
        patch["metadata"] = {"annotations": annotations}
    client.patch(path_of(node), patch)


def _set_ready(client: ApiClient, node: Obj, ready: Obj) -> None:
    others = [each for each in status_of(node).get("conditions") or () if each["type"] != "Ready"]
    client.patch(path_of(node, "status"), {"status": {"conditions": [*others, ready]}})


def _pods(client: ApiClient, node: str) -> list[Obj]:
    found: list[Obj] = client.list(POD.root)["items"]
    return [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in found if node_name_of(pod) == node]
