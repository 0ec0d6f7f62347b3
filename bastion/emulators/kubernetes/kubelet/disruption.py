"""Why a kubelet itself ends pods: pressure on the node, and the node's shutdown.

Reasons and messages follow pkg/kubelet/eviction/helpers.go (`evictionMessage`) and
pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.
"""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.kubelet.pod_folder import PodFolder
from bastion.emulators.kubernetes.kubelet.status import Killed

Obj = dict[str, Any]

# GKE puts this taint on a spot VM's node when the VM is about to end.
IMPENDING_TERMINATION = "cloud.google.com/impending-node-termination"
# For pods on GKE's spot VMs, which end 30 s after the notice.
_SPOT_GRACE_SECONDS = 15.0
# Tests shorten it by this annotation of the node.
GRACE_ANNOTATION = "emulator.bastion/shutdown-grace-seconds"


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
    if not any(taint["key"] == IMPENDING_TERMINATION for taint in (node.get("spec") or {}).get("taints") or ()):
        return None
    return Killed(reason="Terminated", message="Pod was terminated in response to imminent node shutdown.")


def shutdown_grace_seconds(node: Obj) -> float:
    try:
        return float(node["metadata"]["annotations"][GRACE_ANNOTATION])
    except (KeyError, ValueError):
        return _SPOT_GRACE_SECONDS
