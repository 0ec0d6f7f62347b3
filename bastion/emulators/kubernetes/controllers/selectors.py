"""Label selectors of objects (apimachinery pkg/apis/meta/v1/helpers.go), and tolerations of taints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bastion.emulators.kubernetes.client import Obj


def matches(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Whether labels match; a missing selector matches nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_fulfills(each, labels) for each in selector.get("matchExpressions") or ())


def _fulfills(requirement: Obj, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement["key"])
    match requirement["operator"]:
        case "In":
            return value is not None and value in requirement["values"]
        case "NotIn":
            return value is None or value not in requirement["values"]
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            raise ValueError(f"{operator!r} is not an operator of label selectors; use In, NotIn, Exists, DoesNotExist")


def tolerated(taint: Obj, tolerations: Iterable[Obj]) -> Obj | None:
    """The first toleration of a taint (component-helpers scheduling/corev1/helpers.go)."""
    for each in tolerations:
        if each.get("effect") not in (None, "", taint["effect"]):
            continue
        if each.get("key") not in (None, "", taint["key"]):
            continue
        if each.get("operator") == "Exists" or (each.get("key") and each.get("value", "") == taint.get("value", "")):
            return each
    return None
