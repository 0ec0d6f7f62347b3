"""Whether a pod accepts a flavor's nodes: its node selector and required node affinity, looking at the flavor's labels
only (flavorSelector in kueue pkg/scheduler/flavorassigner/flavorassigner.go)."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.emulators.kubernetes.client import Obj


def matches_labels(pod_spec: Obj, labels: Mapping[str, str]) -> bool:
    selector = pod_spec.get("nodeSelector") or {}
    if any(labels[key] != value for key, value in selector.items() if key in labels):
        return False
    node_affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    needed = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = []
    for term in needed.get("nodeSelectorTerms") or ():
        relevant = [each for each in term.get("matchExpressions") or () if each["key"] in labels]
        if not relevant:
            # Terms are alternatives: one that says nothing of these labels fits.
            return True
        terms.append(relevant)
    return not terms or any(all(_holds(each, labels) for each in term) for term in terms)


def _holds(requirement: Obj, labels: Mapping[str, str]) -> bool:
    value, values = labels[requirement["key"]], list(requirement.get("values") or ())
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return True
        case "DoesNotExist":
            return False
        case "Gt":
            return int(value) > int(values[0])
        case "Lt":
            return int(value) < int(values[0])
        case operator:
            raise ValueError(f"{operator!r} is not an operator of node affinity; use In, NotIn, Exists, DoesNotExist")
