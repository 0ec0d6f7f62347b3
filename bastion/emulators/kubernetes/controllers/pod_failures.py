"""A Job's pod failure policy, as pkg/controller/job/pod_failure_policy.go."""

from __future__ import annotations

from typing import Literal

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import name_of, namespace_of, status_of

Action = Literal["FailJob", "Ignore", "Count"]


def matching_rule(policy: Obj | None, pod: Obj) -> tuple[Action | None, str]:
    """Return the action of the first rule that matches a failed pod, and why a Job fails by it."""
    for index, rule in enumerate((policy or {}).get("rules") or ()):
        action: Action = rule["action"]
        where = f"matching {action} rule at index {index}"
        pod_name = f"{namespace_of(pod)}/{name_of(pod)}"
        if rule.get("onExitCodes"):
            if (container := _container(pod, rule["onExitCodes"])) is not None:
                code = container["state"]["terminated"]["exitCode"]
                return action, f"Container {container['name']} for pod {pod_name} failed with exit code {code} {where}"
        elif (condition := _condition(pod, rule.get("onPodConditions") or [])) is not None:
            return action, f"Pod {pod_name} has condition {condition['type']} {where}"
    return None, ""


def _container(pod: Obj, requirement: Obj) -> Obj | None:
    """The first container that ended with an exit code that the requirement names; 0 never matches."""
    status = status_of(pod)
    for container in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is None or requirement.get("containerName") not in (None, container["name"]):
            continue
        code = terminated.get("exitCode", 0)
        listed = code in requirement["values"]
        if code != 0 and listed == (requirement["operator"] == "In"):
            found: Obj = container
            return found
    return None


def _condition(pod: Obj, patterns: list[Obj]) -> Obj | None:
    for condition in status_of(pod).get("conditions") or ():
        for pattern in patterns:
            if condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True"):
                found: Obj = condition
                return found
    return None
