"""Why a kubelet itself ends pods: pressure on the node, and the node's shutdown.

Reasons and messages follow pkg/kubelet/eviction/helpers.go (`evictionMessage`) and
pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.
"""

from __future__ import annotations

import datetime
from typing import Any

from bastion.emulators.kubernetes.controllers.node_faults import TERMINATION_TAINT, is_silent, termination_of
from bastion.emulators.kubernetes.kubelet.pod_folder import PodFolder
from bastion.emulators.kubernetes.kubelet.status import Killed

Obj = dict[str, Any]

# For pods on GKE's spot VMs, which end 30 s after the notice.
_SPOT_GRACE_SECONDS = 15.0


def eviction(pod: Obj, folder: PodFolder) -> Killed | None:
    """The eviction that a fault file asks for; its text is the resource, or a whole message with spaces."""
    try:
        text = folder.evict.read_text("utf-8", "replace").strip() or "memory"
    except OSError:
        return None
    if " " in text:
        return Killed(reason="Evicted", message=text)
    container = pod["spec"]["containers"][0]
    request = ((container.get("resources") or {}).get("requests") or {}).get(text, "0")
    message = (
        f"The node was low on resource: {text}. Threshold quantity: 100Mi, available: 50Mi. "
        f"Container {container['name']} was using 1Ti, request is {request}, has larger consumption of {text}. "
    )
    return Killed(reason="Evicted", message=message)


def shutdown(node: Obj) -> Killed | None:
    """The shutdown of a node with GKE's taint for it."""
    if not any(taint["key"] == TERMINATION_TAINT for taint in (node.get("spec") or {}).get("taints") or ()):
        return None
    return Killed(reason="Terminated", message="Pod was terminated in response to imminent node shutdown.")


def shutdown_grace_seconds(node: Obj, now: datetime.datetime) -> float:
    """The time that its pods have, in seconds."""
    ends = termination_of(node)
    return _SPOT_GRACE_SECONDS if ends is None else max(0.0, (ends - now).total_seconds())


def has_no_contact(node: Obj) -> bool:
    """Whether its kubelet reaches no API server (pkg/controller/nodelifecycle)."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return is_silent(node) or any(each["type"] == "Ready" and each["status"] == "Unknown" for each in conditions)
