"""A pod's status as a kubelet writes it: phase, conditions and container states.

Follows pkg/kubelet/kubelet_pods.go (`getPhase`, `generateAPIPodStatus`, `convertToAPIContainerStatuses`),
pkg/kubelet/status/generate.go (conditions) and status_manager.go (`TerminatePod`, transition times). Pure.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bastion.emulators.kubernetes.kubelet.images import InvalidReference, parse
from bastion.emulators.kubernetes.kubelet.pod_folder import ContainerState

Obj = dict[str, Any]

_EPOCH = "1970-01-01T00:00:00Z"
_LOST = "The container could not be located when the pod was terminated"
_KUBELETS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """Why the kubelet itself ends a pod: reason and message of its status."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the kubelet knows of a pod.

    Attributes:
        containers: States by name; a container without one was not created.
        waiting: Reason and message of containers that cannot be created, by name.
        address: Empty before the pod has one.
        terminated: No container runs or will run; what is not terminated is lost.
        killed: A reason that overrides the containers', with the condition DisruptionTarget; once all have ended.
        refused: The pod never starts: the status has no containers (`rejectPod` of kubelet.go).
    """

    containers: Mapping[str, ContainerState] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    address: str = ""
    node_address: str = ""
    terminated: bool = False
    killed: Killed | None = None
    refused: Killed | None = None


def pod_status(pod: Obj, observed: Observed, *, now: float) -> Obj:
    """The new status; `now` in seconds since 1970."""
    old = pod.get("status") or {}
    started = old.get("startTime") or timestamp(now)
    if observed.refused is not None:
        refused = observed.refused
        return {**old, "phase": "Failed", "reason": refused.reason, "message": refused.message, "startTime": started}
    spec = pod["spec"]
    initial, main = spec.get("initContainers") or [], spec["containers"]
    initialized = _has_initialized(initial, observed)
    status: Obj = {"startTime": started, "qosClass": old.get("qosClass") or qos_class(pod)}
    if observed.node_address:
        status |= {"hostIP": observed.node_address, "hostIPs": [{"ip": observed.node_address}]}
    if observed.address:
        status |= {"podIP": observed.address, "podIPs": [{"ip": observed.address}]}
    lose_main = observed.terminated and initialized
    status["containerStatuses"] = [_container(each, observed, bool(initial), lose=lose_main) for each in main]
    if initial:
        statuses = []
        for index, each in enumerate(initial):
            begun = each["name"] in observed.containers and observed.containers[each["name"]].phase != "waiting"
            lose = observed.terminated and (begun or index == 0) and not initialized
            statuses.append(_container(each, observed, True, lose=lose, init=True))
        status["initContainerStatuses"] = statuses
    phase = _phase(status.get("initContainerStatuses", []), status["containerStatuses"])
    if observed.terminated and phase not in ("Succeeded", "Failed"):
        phase = "Failed"
    if old.get("phase") in ("Succeeded", "Failed"):
        phase = old["phase"]
    status["phase"] = phase
    if phase == old.get("phase"):
        status |= {name: old[name] for name in ("reason", "message") if old.get(name)}
    # The status manager delays both until no container runs (`mergePodStatus`).
    killed = observed.killed if status["phase"] in ("Succeeded", "Failed") else None
    # A pod whose containers all end with code 0 keeps the condition only.
    if killed is not None and status["phase"] == "Failed":
        status |= {"reason": killed.reason, "message": killed.message}
    status["conditions"] = _conditions(old.get("conditions") or [], status, observed, killed, now)
    return status


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as in the API; zero is the zero of Unix time."""
    if not seconds:
        return _EPOCH
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def qos_class(pod: Obj) -> str:
    """pkg/apis/core/v1/helper/qos/qos.go, for CPU and memory."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    guaranteed, any_set = True, False
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_set = any_set or name in limits or name in requests
            guaranteed = guaranteed and name in limits and requests.get(name, limits[name]) == limits[name]
    return "BestEffort" if not any_set else "Guaranteed" if guaranteed else "Burstable"


def _has_initialized(initial: list[Obj], observed: Observed) -> bool:
    """`hasPodInitialized`: whether a missing state of a main container means failure."""
    states = [observed.containers.get(each["name"]) for each in initial]
    return all(state is not None and state.phase == "terminated" and not state.exit_code for state in states)


def _container(container: Obj, observed: Observed, has_init: bool, *, lose: bool, init: bool = False) -> Obj:
    name = container["name"]
    state = observed.containers.get(name) or ContainerState(name=name)
    document: Obj
    if state.phase == "running":
        document = {"running": {"startedAt": timestamp(state.started_at)}}
    elif state.phase == "terminated":
        document = {"terminated": _terminated(state)}
    elif lose:
        document = {
            "terminated": {
                "exitCode": 137,
                "reason": "ContainerStatusUnknown",
                "message": _LOST,
                "startedAt": None,
                "finishedAt": None,
            }
        }
    else:
        reason, message = observed.waiting.get(name, ("PodInitializing" if has_init else "ContainerCreating", ""))
        document = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    succeeded = state.phase == "terminated" and not state.exit_code
    status: Obj = {
        "name": name,
        "state": document,
        "lastState": {},
        "ready": succeeded if init else state.phase == "running",
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "started": state.phase == "running",
    }
    if state.container_id:
        status["containerID"] = state.container_id
        try:
            image = parse(container["image"])
        except InvalidReference:
            return status
        status |= {"image": image.full_name, "imageID": image.image_id}
    return status


def _terminated(state: ContainerState) -> Obj:
    document: Obj = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "startedAt": timestamp(state.started_at),
        "finishedAt": timestamp(state.finished_at),
        "containerID": state.container_id,
    }
    return document | ({"message": state.message} if state.message else {})


def _phase(initial: list[Obj], main: list[Obj]) -> str:
    """`getPhase` for pods that never restart."""
    codes = [each["state"]["terminated"]["exitCode"] for each in initial if "terminated" in each["state"]]
    if any(codes):
        return "Failed"
    if len(codes) < len(initial) or any("waiting" in each["state"] for each in main):
        return "Pending"
    if any("running" in each["state"] for each in main):
        return "Running"
    return "Failed" if any(each["state"]["terminated"]["exitCode"] for each in main) else "Succeeded"


def _conditions(old: list[Obj], status: Obj, observed: Observed, killed: Killed | None, now: float) -> list[Obj]:
    phase = status["phase"]
    main, initial = status["containerStatuses"], status.get("initContainerStatuses", [])
    conditions = [{**condition} for condition in old if condition["type"] not in _KUBELETS]
    if killed is not None:
        conditions = [condition for condition in conditions if condition["type"] != "DisruptionTarget"]
        disruption = {"reason": "TerminationByKubelet", "message": killed.message}
        conditions.append({"type": "DisruptionTarget", "status": "True", **disruption})
    finished = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase)
    unready = [each["name"] for each in main if not each["ready"]]
    if finished:
        ready: Obj = {"status": "False", "reason": finished}
    elif unready:
        names = " ".join(unready)
        message = f"containers with unready status: [{names}]"
        ready = {"status": "False", "reason": "ContainersNotReady", "message": message}
    else:
        ready = {"status": "True"}
    incomplete = [each["name"] for each in initial if not each["ready"]]
    initialized: Obj = {"status": "True"}
    if phase == "Succeeded":
        initialized["reason"] = "PodCompleted"
    elif incomplete:
        names = " ".join(incomplete)
        message = f"containers with incomplete status: [{names}]"
        initialized = {"status": "False", "reason": "ContainersNotInitialized", "message": message}
    has_sandbox = bool(observed.address) and not observed.terminated
    conditions += [
        {"type": "PodReadyToStartContainers", "status": "True" if has_sandbox else "False"},
        {"type": "Initialized", **initialized},
        {"type": "Ready", **ready},
        {"type": "ContainersReady", **ready},
        {"type": "PodScheduled", "status": "True"},
    ]
    before = {condition["type"]: condition for condition in old}
    for condition in conditions:
        known = before.get(condition["type"])
        same = known is not None and known.get("status") == condition["status"]
        kept = known.get("lastTransitionTime") if same and known is not None else None
        condition["lastProbeTime"] = None
        condition["lastTransitionTime"] = kept or timestamp(now)
    return conditions
