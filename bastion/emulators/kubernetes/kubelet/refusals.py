"""What emulated pods do not have: a pod that asks for it fails with the name of the field, and never runs differently.

The lists name the fields that are emulated or do not matter here; every other field that is set is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

Obj = dict[str, Any]

_SPEC = frozenset(
    [
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostname",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "restartPolicy",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    ]
)
_CONTAINER = frozenset(
    [
        "args",
        "command",
        "env",
        "image",
        "imagePullPolicy",
        "name",
        "ports",
        "resources",
        "securityContext",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "volumeMounts",
        "workingDir",
    ]
)
_SECURITY = frozenset(
    [
        "allowPrivilegeEscalation",
        "capabilities",
        "fsGroup",
        "fsGroupChangePolicy",
        "procMount",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seccompProfile",
        "supplementalGroups",
    ]
)
_MOUNT = frozenset(("mountPath", "name", "readOnly", "recursiveReadOnly", "subPath"))
_VARIABLE_SOURCES = frozenset(("fieldRef", "configMapKeyRef", "secretKeyRef"))


def refusal(pod: Obj) -> str:
    """Why the emulator cannot run this pod, naming the first such field; empty if it can."""
    spec = pod["spec"]
    for problem in _problems(spec):
        return f"{problem} is not emulated; remove it, or use a real cluster"
    return ""


def _problems(spec: Obj) -> Iterator[str]:
    if spec.get("restartPolicy", "Always") != "Never":
        yield f"spec.restartPolicy {spec.get('restartPolicy', 'Always')}"
    yield from _unknown(spec, _SPEC, "spec")
    yield from _security(spec, "spec")
    for volume in spec.get("volumes") or ():
        kinds = [kind for kind, value in volume.items() if kind != "name" and value is not None]
        created = (volume.get("hostPath") or {}).get("type") == "DirectoryOrCreate"
        if kinds == ["projected"]:
            yield from _projected(volume)
        elif kinds not in ([], ["emptyDir"]) and not (kinds == ["hostPath"] and created):
            yield f"a volume of kind {kinds[0]} (spec.volumes {volume['name']})"
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            yield from _container(container, f"spec.{group}[{index}]")


def _projected(volume: Obj) -> Iterator[str]:
    for source in volume["projected"].get("sources") or ():
        for kind, value in source.items():
            where = f"(spec.volumes {volume['name']})"
            if kind != "secret":
                yield f"a volume projected from {kind} {where}"
            elif not value.get("optional"):
                yield f"a volume projected from a Secret that is not optional {where}"


def _container(container: Obj, where: str) -> Iterator[str]:
    yield from _unknown(container, _CONTAINER, where)
    yield from _security(container, where)
    if not container.get("command"):
        yield f"{where} without a command (an emulated image has no entrypoint)"
    for mount in container.get("volumeMounts") or ():
        yield from _unknown(mount, _MOUNT, f"{where}.volumeMounts {mount.get('name')}")
    for variable in container.get("env") or ():
        sources = [kind for kind, value in (variable.get("valueFrom") or {}).items() if value is not None]
        yield from (f"{where}.env {variable['name']} from {kind}" for kind in sources if kind not in _VARIABLE_SOURCES)


def _security(holder: Obj, where: str) -> Iterator[str]:
    context = holder.get("securityContext") or {}
    yield from _unknown(context, _SECURITY, f"{where}.securityContext")
    user = context.get("runAsUser")
    if user not in (None, os.getuid()):
        yield f"{where}.securityContext.runAsUser {user} (containers run as user {os.getuid()} here)"
    if added := (context.get("capabilities") or {}).get("add"):
        yield f"{where}.securityContext.capabilities.add {', '.join(added)}"


def _unknown(holder: Obj, known: frozenset[str], where: str) -> Iterator[str]:
    for name, value in holder.items():
        if name not in known and value not in (None, False, [], {}, ""):
            yield f"{where}.{name}"
