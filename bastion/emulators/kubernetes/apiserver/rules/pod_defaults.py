"""Defaults of pods and pod templates: kubernetes pkg/apis/core/v1/defaults.go."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

# Volume sources whose files have a mode.
_MODED = ("secret", "configMap", "projected", "downwardAPI")


def fill(spec: Object) -> None:
    """Fill in the defaults of a pod's spec, in place."""
    for name, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("schedulerName", "default-scheduler"),
    ):
        if spec.get(name) is None:
            spec[name] = value
    spec.setdefault("securityContext", {})
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        # The old name of the field is kept equal: pkg/apis/core/v1/conversion.go.
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        _fill_container(container)
    for volume in spec.get("volumes") or []:
        _fill_volume(volume)


def _fill_container(container: Object) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = "Always" if _is_latest(container.get("image") or "") else "IfNotPresent"
    resources = container.setdefault("resources", {})
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or []:
        if field := (variable.get("valueFrom") or {}).get("fieldRef"):
            field.setdefault("apiVersion", "v1")


def _is_latest(image: str) -> bool:
    """Whether the tag is `latest`, also by omission; an image by digest has none."""
    if "@" in image:
        return False
    _, _, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return bool(name) and tag in ("", "latest")


def _fill_volume(volume: Object) -> None:
    sources = [name for name in volume if name != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for name in _MODED:
        if isinstance(source := volume.get(name), dict):
            source.setdefault("defaultMode", 0o644)
            if name == "projected":
                for part in source.get("sources") or []:
                    if token := part.get("serviceAccountToken"):
                        token.setdefault("expirationSeconds", 3600)
