"""Validation of pods and pod templates, for the fields that are emulated: kubernetes pkg/apis/core/validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bastion.emulators.kubernetes.apiserver import names, quantities
from bastion.emulators.kubernetes.apiserver.statuses import (
    Problem,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)

Object = dict[str, Any]

_RESTARTS = ("Always", "Never", "OnFailure")
_OPERATORS = ("Equal", "Exists", "Gt", "Lt")
_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_PULLS = ("Always", "IfNotPresent", "Never")
_DNS = ("None", "ClusterFirstWithHostNet", "ClusterFirst", "Default")
_FIELD_PATHS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_SUBSCRIPTED = ("metadata.annotations", "metadata.labels")
_PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def spec_problems(spec: Mapping[str, Any], path: str = "spec") -> list[Problem]:
    """ValidatePodSpec."""
    found: list[Problem] = []
    volumes = _volumes(spec.get("volumes") or [], f"{path}.volumes", found)
    containers, initial = spec.get("containers") or [], spec.get("initContainers") or []
    if not containers:
        found.append(required(f"{path}.containers"))
    seen: set[str] = set()
    for field, listed in (("containers", containers), ("initContainers", initial)):
        for index, container in enumerate(listed):
            found += _container_problems(container, f"{path}.{field}[{index}]", seen, volumes)
    if spec.get("restartPolicy") not in _RESTARTS:
        found.append(not_supported(f"{path}.restartPolicy", spec.get("restartPolicy", ""), _RESTARTS))
    if spec.get("dnsPolicy") not in _DNS:
        found.append(not_supported(f"{path}.dnsPolicy", spec.get("dnsPolicy", ""), _DNS))
    for field, least in (("terminationGracePeriodSeconds", 0), ("activeDeadlineSeconds", 1)):
        if (value := spec.get(field)) is not None and value < least:
            text = "must be greater than or equal to 0" if least == 0 else "must be between 1 and 2147483647, inclusive"
            found.append(invalid_value(f"{path}.{field}", value, text))
    rules: tuple[tuple[str, Callable[[str], list[str]]], ...] = (
        ("hostname", names.label),
        ("subdomain", names.label),
        ("serviceAccountName", names.subdomain),
        ("nodeName", names.subdomain),
        ("priorityClassName", names.subdomain),
    )
    for field, rule in rules:
        if value := spec.get(field):
            found += [invalid_value(f"{path}.{field}", value, why) for why in rule(value)]
    found += names.labels_problems(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations") or []):
        found += _toleration_problems(toleration, f"{path}.tolerations[{index}]")
    return found


def _volumes(volumes: list[Any], path: str, found: list[Problem]) -> set[str]:
    """The names of the volumes; problems go to `found`."""
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        here, name = f"{path}[{index}]", volume.get("name") or ""
        found += _name_problems(name, f"{here}.name", seen)
        sources = [source for source in volume if source != "name"]
        if not sources:
            found.append(required(here, "must specify a volume type"))
        found += [
            forbidden_field(f"{here}.{source}", "may not specify more than 1 volume type") for source in sources[1:]
        ]
    return seen


def _name_problems(name: str, path: str, seen: set[str]) -> list[Problem]:
    """A name that is required, a label, and unique among `seen`, which learns it."""
    if not name:
        return [required(path)]
    if name in seen:
        return [duplicate(path, name)]
    seen.add(name)
    return [invalid_value(path, name, why) for why in names.label(name)]


def _container_problems(container: Object, path: str, seen: set[str], volumes: set[str]) -> list[Problem]:
    found = _name_problems(container.get("name") or "", f"{path}.name", seen)
    image = container.get("image") or ""
    if not image:
        found.append(required(f"{path}.image"))
    elif image != image.strip():
        found.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if (pull := container.get("imagePullPolicy")) not in (*_PULLS, None):
        found.append(not_supported(f"{path}.imagePullPolicy", pull, _PULLS))
    for index, variable in enumerate(container.get("env") or []):
        found += _variable_problems(variable, f"{path}.env[{index}]")
    for index, port in enumerate(container.get("ports") or []):
        number = port.get("containerPort") or 0
        if not number:
            found.append(required(f"{path}.ports[{index}].containerPort"))
        elif not 0 < number < 65536:
            text = "must be between 1 and 65535, inclusive"
            found.append(invalid_value(f"{path}.ports[{index}].containerPort", number, text))
    found += _mount_problems(container.get("volumeMounts") or [], f"{path}.volumeMounts", volumes)
    return found + _resource_problems(container.get("resources") or {}, f"{path}.resources")


def _variable_problems(variable: Object, path: str) -> list[Problem]:
    name = variable.get("name") or ""
    if not name:
        return [required(f"{path}.name")]
    found = [invalid_value(f"{path}.name", name, why) for why in names.environment(name)]
    source = variable.get("valueFrom")
    if source is None:
        return found
    here = f"{path}.valueFrom"
    if variable.get("value"):
        found.append(invalid_value(here, "", "may not be specified when `value` is not empty"))
    if not source:
        text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        found.append(invalid_value(here, "", text))
    elif len(source) > 1:
        found.append(invalid_value(here, "", "may not have more than one field specified at a time"))
    if field := source.get("fieldRef"):
        text = field.get("fieldPath") or ""
        if not text:
            found.append(required(f"{here}.fieldRef.fieldPath"))
        elif text not in _FIELD_PATHS and text.partition("[")[0] not in _SUBSCRIPTED:
            found.append(not_supported(f"{here}.fieldRef.fieldPath", text, _FIELD_PATHS))
    return found


def _mount_problems(mounts: Iterable[Object], path: str, volumes: set[str]) -> list[Problem]:
    found: list[Problem] = []
    seen: set[str] = set()
    for index, mount in enumerate(mounts):
        here, name, where = f"{path}[{index}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            found.append(required(f"{here}.name"))
        elif name not in volumes:
            found.append(Problem("NotFound", f"{here}.name", "", name))
        if not where:
            found.append(required(f"{here}.mountPath"))
        elif where in seen:
            found.append(invalid_value(f"{here}.mountPath", where, "must be unique"))
        seen.add(where)
    return found


def _resource_problems(resources: Object, path: str) -> list[Problem]:
    """ValidateResourceRequirements: extended resources are whole, and requested as limited."""
    found: list[Problem] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            here = f"{path}.{part}[{name}]" if "/" in name or "." in name else f"{path}.{part}.{name}"
            found += [invalid_value(f"{path}.{part}", name, why) for why in names.qualified(name)]
            if name not in _PLAIN_RESOURCES and "/" not in name and not name.startswith("hugepages-"):
                text = "must be a standard resource type or fully qualified"
                found.append(invalid_value(f"{path}.{part}", name, text))
            value = quantities.parse(amount)
            if value < 0:
                found.append(invalid_value(here, str(amount), "must be greater than or equal to 0"))
            if "/" in name and value.denominator != 1:
                found.append(invalid_value(here, str(amount), "must be an integer"))
    for name, amount in requests.items():
        extended = "/" in name
        if name not in limits:
            if extended:
                found.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif extended and quantities.parse(amount) != quantities.parse(limits[name]):
            text = f"must be equal to {name} limit of {limits[name]}"
            found.append(invalid_value(f"{path}.requests", str(amount), text))
        elif quantities.parse(amount) > quantities.parse(limits[name]):
            text = f"must be less than or equal to {name} limit of {limits[name]}"
            found.append(invalid_value(f"{path}.requests", str(amount), text))
    return found


def _toleration_problems(toleration: Object, path: str) -> list[Problem]:
    """ValidateTolerations."""
    found: list[Problem] = []
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    effect, value = toleration.get("effect") or "", toleration.get("value") or ""
    if key:
        found += [invalid_value(f"{path}.key", key, why) for why in names.qualified(key)]
    elif operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        found.append(invalid_value(f"{path}.operator", operator, text))
    if operator not in _OPERATORS:
        found.append(not_supported(f"{path}.operator", operator, _OPERATORS[:2]))
    if operator == "Exists" and value:
        text = "value must be empty when `operator` is 'Exists'"
        found.append(invalid_value(f"{path}.operator", toleration.get("value"), text))
    if effect and effect not in _EFFECTS:
        found.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        found.append(invalid_value(f"{path}.effect", effect, text))
    return found
