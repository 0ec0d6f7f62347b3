"""Pods: kubernetes pkg/registry/core/pod/strategy.go, pkg/apis/core/validation (ValidatePodUpdate)."""

from __future__ import annotations

import copy
from fractions import Fraction

from bastion.emulators.kubernetes.apiserver import quantities
from bastion.emulators.kubernetes.apiserver.rules import pod_defaults
from bastion.emulators.kubernetes.apiserver.rules.base import Object, WithStatus
from bastion.emulators.kubernetes.apiserver.rules.pod_validation import spec_problems
from bastion.emulators.kubernetes.apiserver.statuses import Problem, forbidden_field

_ENDED = ("Failed", "Succeeded")
_CHANGEABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodRules(WithStatus):
    def default(self, document: Object) -> None:
        spec = document.setdefault("spec", {})
        pod_defaults.fill(spec)
        if spec.get("enableServiceLinks") is None:
            spec["enableServiceLinks"] = True

    def initial_status(self, document: Object) -> Object:
        return {"phase": "Pending", "qosClass": _qos(document["spec"])}

    def create_problems(self, document: Object) -> list[Problem]:
        return spec_problems(document["spec"])

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        if _fixed(document, old) != old["spec"]:
            return [forbidden_field("spec", _CHANGEABLE)]
        return spec_problems(document["spec"])

    def prepare_status(self, document: Object, old: Object) -> Object:
        """A status write changes labels and annotations too, but not owners and deletion (podStatusStrategy)."""
        result = super().prepare_status(document, old)
        result["metadata"]["ownerReferences"] = old["metadata"].get("ownerReferences") or []
        if not result["metadata"]["ownerReferences"]:
            del result["metadata"]["ownerReferences"]
        result.setdefault("status", {}).setdefault("qosClass", _qos(old["spec"]))
        return result

    def grace_seconds(self, document: Object, wanted: int | None) -> int:
        """CheckGracefulDelete: none for a pod that no node has, or that has ended."""
        spec = document["spec"]
        seconds = spec["terminationGracePeriodSeconds"] if wanted is None else wanted
        if not spec.get("nodeName") or document.get("status", {}).get("phase") in _ENDED:
            return 0
        return 1 if seconds < 0 else int(seconds)


def _fixed(document: Object, old: Object) -> Object:
    """The new spec with everything changeable as it was."""
    new, before = copy.deepcopy(document["spec"]), old["spec"]
    for field in ("containers", "initContainers"):
        for container, earlier in zip(new.get(field) or [], before.get(field) or [], strict=False):
            container["image"] = earlier["image"]
            container["imagePullPolicy"] = earlier["imagePullPolicy"]
    tolerations = before.get("tolerations") or []
    added = all(toleration in (new.get("tolerations") or []) for toleration in tolerations)
    for field in ("activeDeadlineSeconds", *(["tolerations"] if added else [])):
        _restore(new, before, field)
    gates = [gate["name"] for gate in before.get("schedulingGates") or []]
    if all(gate["name"] in gates for gate in new.get("schedulingGates") or []):
        _restore(new, before, "schedulingGates")
    result: Object = new
    return result


def _restore(new: Object, before: Object, field: str) -> None:
    if field in before:
        new[field] = before[field]
    else:
        new.pop(field, None)


def _qos(spec: Object) -> str:
    """ComputePodQOS (pkg/apis/core/helper/qos): of cpu and memory only."""
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    amounts: list[tuple[Fraction, Fraction]] = []
    for container in containers:
        resources = container.get("resources") or {}
        for name in ("cpu", "memory"):
            request = quantities.parse((resources.get("requests") or {}).get(name, 0))
            amounts.append((request, quantities.parse((resources.get("limits") or {}).get(name, 0))))
    if not any(request or limit for request, limit in amounts):
        return "BestEffort"
    return "Guaranteed" if all(limit and request == limit for request, limit in amounts) else "Burstable"
