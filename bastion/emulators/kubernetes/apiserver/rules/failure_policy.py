"""A Job's podFailurePolicy: kubernetes pkg/apis/batch/validation/validation.go, validatePodFailurePolicy."""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.statuses import (
    Problem,
    duplicate,
    invalid_value,
    not_supported,
    required,
)

Object = dict[str, Any]

_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
_STATUSES = ("False", "True", "Unknown")
_RULES_MAX = 20
_VALUES_MAX = 255
_PATTERNS_MAX = 20


def failure_policy_problems(policy: Object, spec: Object, path: str) -> list[Problem]:
    rules = policy.get("rules") or []
    found = []
    if len(rules) > _RULES_MAX:
        found.append(Problem("TooMany", f"{path}.rules", f"must have at most {_RULES_MAX} items", len(rules)))
    pod = spec["template"]["spec"]
    containers = {
        container.get("name") for container in [*(pod.get("containers") or []), *(pod.get("initContainers") or [])]
    }
    for index, rule in enumerate(rules):
        found += _rule_problems(rule, f"{path}.rules[{index}]", containers, spec)
    return found


def _rule_problems(rule: Object, path: str, containers: set[Any], spec: Object) -> list[Problem]:
    found = []
    action = rule.get("action") or ""
    if not action:
        found.append(required(f"{path}.action", f"valid values: {', '.join(f'{name!r}' for name in _ACTIONS)}"))
    elif action not in _ACTIONS:
        found.append(not_supported(f"{path}.action", action, _ACTIONS))
    elif action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
        found.append(invalid_value(f"{path}.action", action, "requires the backoffLimitPerIndex to be set"))
    codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions") or []
    if codes is not None:
        found += _code_problems(codes, f"{path}.onExitCodes", containers)
    if len(patterns) > _PATTERNS_MAX:
        text = f"must have at most {_PATTERNS_MAX} items"
        found.append(Problem("TooMany", f"{path}.onPodConditions", text, len(patterns)))
    for index, pattern in enumerate(patterns):
        here = f"{path}.onPodConditions[{index}]"
        kind = pattern.get("type") or ""
        found += [invalid_value(f"{here}.type", kind, why) for why in names.qualified(kind)]
        if pattern.get("status") not in _STATUSES:
            found.append(not_supported(f"{here}.status", pattern.get("status"), _STATUSES))
    if codes is not None and patterns:
        text = "specifying both OnExitCodes and OnPodConditions is not supported"
        found.append(invalid_value(path, None, text))
    if codes is None and not patterns:
        found.append(invalid_value(path, None, "specifying one of OnExitCodes and OnPodConditions is required"))
    return found


def _code_problems(codes: Object, path: str, containers: set[Any]) -> list[Problem]:
    found = []
    operator, values = codes.get("operator") or "", codes.get("values") or []
    if operator not in _OPERATORS:
        found.append(
            not_supported(f"{path}.operator", operator, _OPERATORS) if operator else required(f"{path}.operator")
        )
    if codes.get("containerName") is not None and codes["containerName"] not in containers:
        text = "must be one of the container or initContainer names in the pod template"
        found.append(invalid_value(f"{path}.containerName", codes["containerName"], text))
    if not values:
        found.append(invalid_value(f"{path}.values", [], "at least one value is required"))
    elif len(values) > _VALUES_MAX:
        text = f"must have at most {_VALUES_MAX} items"
        found.append(Problem("TooMany", f"{path}.values", text, len(values)))
    for index, value in enumerate(values):
        here = f"{path}.values[{index}]"
        if value in values[:index]:
            found.append(duplicate(here, value))
        if operator == "In" and value == 0:
            found.append(invalid_value(here, value, "must not be 0 for the In operator"))
    if list(values) != sorted(values):
        found.append(invalid_value(f"{path}.values", values, "must be ordered"))
    return found
