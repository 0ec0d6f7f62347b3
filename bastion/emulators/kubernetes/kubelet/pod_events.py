"""The Events that a kubelet records about a pod (pkg/kubelet/events/event.go), from the change of its status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Obj = dict[str, Any]

_PULLS = ("ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff")


class PodEvent(NamedTuple):
    reason: str
    message: str
    warning: bool = False


def events(pod: Obj, status: Obj) -> list[PodEvent]:
    """What happened between the pod's old status and the new one."""
    old = pod.get("status") or {}
    found: list[PodEvent] = []
    for group in ("initContainerStatuses", "containerStatuses"):
        before = {each["name"]: each["state"] for each in old.get(group) or ()}
        for each in status.get(group) or ():
            found += _of_container(each, before.get(each["name"]) or {})
    reason = status.get("reason")
    if reason and reason != old.get("reason"):
        found.append(PodEvent(reason, status.get("message", ""), warning=True))
    return found


def _of_container(container: Obj, before: Obj) -> Iterator[PodEvent]:
    name, image, state = container["name"], container["image"], container["state"]
    waits = state.get("waiting")
    if waits and waits["reason"] != (before.get("waiting") or {}).get("reason"):
        message = waits.get("message", "")
        if waits["reason"] == "ImagePullBackOff":
            yield PodEvent("BackOff", f'Back-off pulling image "{image}"')
        elif waits["reason"] == "ErrImagePull":
            yield PodEvent("Pulling", f'Pulling image "{image}"')
            yield PodEvent("Failed", f'Failed to pull image "{image}": {message}', warning=True)
        if waits["reason"] in _PULLS:
            yield PodEvent("Failed", f"Error: {waits['reason']}", warning=True)
        elif message:
            yield PodEvent("Failed", f"Error: {message}", warning=True)
    ended = state.get("terminated")
    if _started(state) and not _started(before):
        yield PodEvent("Pulled", f'Container image "{image}" already present on machine')
        yield PodEvent("Created", f"Created container: {name}")
        if ended and ended["reason"] == "StartError":
            yield PodEvent("Failed", f"Error: {ended['message']}", warning=True)
        else:
            yield PodEvent("Started", f"Started container {name}")


def _started(state: Obj) -> bool:
    return "running" in state or bool((state.get("terminated") or {}).get("containerID"))
