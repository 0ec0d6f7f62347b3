"""The environment of a container: its pod's fields, references, and what the emulated node adds.

Follows `makeEnvironmentVariables` and `podFieldSelectorRuntimeValue` of pkg/kubelet/kubelet_pods.go: variables are
resolved in their order, and each can refer to those before it. Variables of services are not emulated.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bastion.emulators.kubernetes.kubelet.expansion import expand

Obj = dict[str, Any]
# Returns a ConfigMap or Secret of the pod's namespace; None: does not exist. Arguments: `configmap` or `secret`, name.
Fetch = Callable[[str, str], Obj | None]

TPU = "google.com/tpu"
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """A variable without a value; the container waits with CreateContainerConfigError and this message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """A pod's address, its node's, and those of all pods of its Job by completion index (empty without a Job)."""

    pod: str
    node: str
    job: tuple[str, ...] = ()


def field_value(pod: Obj, path: str, addresses: Addresses) -> str:
    """The value of a `fieldRef`; a missing label or annotation is empty (pkg/fieldpath). Raises ConfigError."""
    metadata, spec = pod["metadata"], pod["spec"]
    if subscript := _SUBSCRIPT.fullmatch(path):
        return str((metadata.get(subscript[1]) or {}).get(subscript[2], ""))
    values: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": addresses.node,
        "status.hostIPs": addresses.node,
        "status.podIP": addresses.pod,
        "status.podIPs": addresses.pod,
    }
    for name in ("labels", "annotations"):
        pairs = sorted((metadata.get(name) or {}).items())
        values[f"metadata.{name}"] = "\n".join(f"{key}={json.dumps(value)}" for key, value in pairs)
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return values[path]


def spec_variables(
    pod: Obj, container: Obj, addresses: Addresses, fetch: Fetch, *, injected: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of a container's `env`, after those that a webhook would inject. Raises ConfigError."""
    found: dict[str, str] = dict(injected or {})
    for variable in container.get("env") or ():
        value, source = variable.get("value") or "", variable.get("valueFrom")
        if value:
            found[variable["name"]] = expand(value, found)
        elif source is None:
            found[variable["name"]] = ""
        elif "fieldRef" in source:
            found[variable["name"]] = field_value(pod, source["fieldRef"]["fieldPath"], addresses)
        else:
            text = _referred(pod, source, fetch)
            if text is not None:
                found[variable["name"]] = text
    return found


def _referred(pod: Obj, source: Obj, fetch: Fetch) -> str | None:
    """The value in a ConfigMap or Secret; None: optional and missing. Raises ConfigError."""
    kind, what, reference = (
        ("secret", "Secret", source["secretKeyRef"])
        if "secretKeyRef" in source
        else ("configmap", "ConfigMap", source["configMapKeyRef"])
    )
    found = fetch(kind, reference["name"])
    if found is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    value: str | None = (found.get("data") or {}).get(reference["key"])
    if value is None:
        if reference.get("optional"):
            return None
        where = f"{pod['metadata']['namespace']}/{reference['name']}"
        raise ConfigError(f"couldn't find key {reference['key']} in {what} {where}")
    return base64.b64decode(value).decode("utf-8", "replace") if kind == "secret" else value


def tpu_variables(pod: Obj, container: Obj, addresses: Addresses) -> dict[str, str]:
    """What GKE injects into containers with TPUs of an Indexed Job with several pods.

    Addresses instead of host names, because this machine has no name server for pods.
    """
    index = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-completion-index")
    limits = (container.get("resources") or {}).get("limits") or {}
    if index is None or len(addresses.job) < 2 or TPU not in limits:
        return {}
    return {"TPU_WORKER_HOSTNAMES": ",".join(addresses.job), "TPU_WORKER_ID": index}


def hostname(pod: Obj) -> str:
    """The pod's own host name (`GeneratePodHostNameAndDomain` of kubelet_pods.go)."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"][:63].rstrip("-."))


def command(container: Obj, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The command and its arguments, with references replaced."""
    parts = [*(container.get("command") or ()), *(container.get("args") or ())]
    return tuple(expand(part, variables) for part in parts)
