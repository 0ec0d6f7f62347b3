"""What the server has: groups, kinds, version, health.

Sources: apiserver pkg/endpoints/discovery, kubernetes pkg/controlplane.
"""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.apiserver import openapi
from bastion.emulators.kubernetes.apiserver.resources import Resource, group_versions

Object = dict[str, Any]

VERSION = ("1", "36", "v1.36.4")
_HEALTH = ("/healthz", "/livez", "/readyz")


def answer(path: str, served: tuple[Resource, ...]) -> Object | bytes | None:
    """The document of a path on a server with these kinds; None if it is no discovery path."""
    parts = path.strip("/").split("/")
    groups = group_versions(served)
    match parts:
        case ["version"]:
            return version()
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return {"kind": "APIGroupList", "groups": [_group(group, found) for group, found in groups if group]}
        case ["apis", group] if group in (versions := dict(groups)) and group:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions[group])}
        case ["api", "v1"]:
            return _resource_list("", "v1", served)
        case ["apis", group, found] if (group, found) in groups:
            return _resource_list(group, found, served)
        case ["openapi", *_]:
            return openapi.answer(path.rstrip("/"), served)
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


def _group(group: str, found: str) -> Object:
    version = {"groupVersion": f"{group}/{found}", "version": found}
    return {"name": group, "versions": [version], "preferredVersion": version}


def _resource_list(group: str, found: str, served: tuple[Resource, ...]) -> Object:
    listed = []
    for resource in served:
        if (resource.group, resource.version) == (group, found):
            listed.append(_entry(resource))
            if resource.status:
                listed.append(
                    {
                        "name": f"{resource.plural}/status",
                        "singularName": "",
                        "namespaced": resource.namespaced,
                        "kind": resource.kind,
                        "verbs": ["get", "patch", "update"],
                    }
                )
    text = f"{group}/{found}" if group else found
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": text, "resources": listed}


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
