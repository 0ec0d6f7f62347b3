"""The part of OpenAPI v3 that kubectl asks for before it creates: whether the server validates fields itself.

Source: kubectl looks for the parameter `fieldValidation` of a kind's PATCH (cli-runtime pkg/resource/
query_param_verifier_v3.go). Schemas are not served; `kubectl explain` has nothing to show.
"""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.apiserver.resources import Resource, group_versions

Object = dict[str, Any]

_PREFIX = "/openapi/v3"
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def answer(path: str, resources: tuple[Resource, ...]) -> Object | None:
    """The document of a path on a server with these kinds; None if there is none."""
    places = {_place(group, version): (group, version) for group, version in group_versions(resources)}
    if path == _PREFIX:
        return {"paths": {place: {"serverRelativeURL": f"{_PREFIX}/{place}"} for place in places}}
    found = places.get(path.removeprefix(f"{_PREFIX}/"))
    if found is None:
        return None
    served = [resource for resource in resources if (resource.group, resource.version) == found]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": found[1]},
        "paths": {_path(resource): {"patch": _patch(resource)} for resource in served},
    }


def _place(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def _path(resource: Resource) -> str:
    namespace = "namespaces/{namespace}/" if resource.namespaced else ""
    return f"/{_place(resource.group, resource.version)}/{namespace}{resource.plural}/{{name}}"


def _patch(resource: Resource) -> Object:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _PARAMETERS]
    return {
        "x-kubernetes-group-version-kind": kind,
        "x-kubernetes-action": "patch",
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    }
