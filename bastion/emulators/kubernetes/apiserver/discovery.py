"""What the server has: groups, kinds, version, health.

Sources: apiserver pkg/endpoints/discovery, kubernetes pkg/controlplane.
"""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.apiserver import openapi
from bastion.emulators.kubernetes.apiserver.resources import ALL, Resource, group_versions

Object = dict[str, Any]

VERSION = ("1", "36", "v1.36.4")
_HEALTH = ("/healthz", "/livez", "/readyz")


def answer(path: str) -> Object | bytes | None:
    """The document of a path; None if it is no discovery path."""
    parts = path.strip("/").split("/")
    match parts:
        case ["version"]:
            return version()
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = [_group(group) for group, _ in group_versions() if group]
            return {"kind": "APIGroupList", "groups": groups}
        case ["apis", group] if any(group == found for found, _ in group_versions() if found):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        case ["api", "v1"]:
            return _resource_list("", "v1")
        case ["apis", group, found] if (group, found) in group_versions():
            return _resource_list(group, found)
        case ["openapi", *_]:
            return openapi.answer(path.rstrip("/"))
        case [_] if path in _HEALTH:
            return b"ok"
        case _:
            return None


def version() -> Object:
    major, minor, text = VERSION
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{text}+bastion-emulator",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def _group(group: str) -> Object:
    versions = [
        {"groupVersion": f"{group}/{found}", "version": found} for name, found in group_versions() if name == group
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(group: str, found: str) -> Object:
    served = []
    for resource in ALL:
        if (resource.group, resource.version) == (group, found):
            served.append(_entry(resource))
            if resource.status:
                served.append(
                    {
                        "name": f"{resource.plural}/status",
                        "singularName": "",
                        "namespaced": resource.namespaced,
                        "kind": resource.kind,
                        "verbs": ["get", "patch", "update"],
                    }
                )
    text = f"{group}/{found}" if group else found
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": text, "resources": served}


def _entry(resource: Resource) -> Object:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry
