"""What `deploy/terraform/modules/bucket` makes for given variables: buckets, managed folders, roles, bindings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.support.rights.bindings import Granted
from tests.support.terraform import configuration
from tests.support.terraform.expressions import Functions, evaluated

MODULE = Path(__file__).resolve().parents[3] / "deploy" / "terraform" / "modules" / "bucket"

FUNCTIONS: Functions = {
    "concat": lambda *lists: [item for one in lists for item in one],
    "file": lambda path: Path(path).read_text("utf-8"),
    "flatten": lambda lists: [item for one in lists for item in one],
    "jsondecode": json.loads,
    "length": len,
    "merge": lambda *maps: {key: value for one in maps for key, value in one.items()},
    "replace": lambda text, old, new: text.replace(old, new),
    "title": lambda text: text.title(),
    "toset": lambda items: dict.fromkeys(items),
    "yamldecode": yaml.safe_load,
}


class BucketModule:
    """The module, evaluated. `planted` is a text of its main.tf to read instead."""

    def __init__(self, variables: Mapping[str, Any], planted: str = "") -> None:
        modules = configuration.load(MODULE, {"main.tf": planted} if planted else None)
        self._module = modules[MODULE]
        self._variables = variables

    @property
    def granted(self) -> list[Granted]:
        """Every binding on a managed folder or a bucket."""
        return [
            Granted(
                bucket=each["bucket"],
                folder=each.get("managed_folder", ""),
                role=each["role"],
                member=each["member"],
                condition=each.get("condition"),
            )
            for kind in ("google_storage_managed_folder_iam_member", "google_storage_bucket_iam_member")
            for name in self._names(kind)
            for each in self._instances(kind, name).values()
        ]

    @property
    def folders(self) -> list[tuple[str, str]]:
        """Bucket and name of each managed folder."""
        kind = "google_storage_managed_folder"
        return [
            (each["bucket"], each["name"])
            for name in self._names(kind)
            for each in self._instances(kind, name).values()
        ]

    @property
    def roles(self) -> dict[str, list[str]]:
        """The permissions of each custom role."""
        instances = self._instances("google_project_iam_custom_role", "this")
        return {each["id"]: each["permissions"] for each in instances.values()}

    def _names(self, kind: str) -> list[str]:
        return [name for one, type_, name in self._module.resources if (one, type_) == ("resource", kind)]

    @cached_property
    def _scope(self) -> dict[str, Any]:
        scope: dict[str, Any] = {"var": self._variables, "path": {"module": str(MODULE)}, "local": {}}
        waiting = dict(self._module.local_values)
        while waiting:
            ready = [name for name, one in waiting.items() if not set(_locals_in(one.body)) & waiting.keys()]
            for name in ready:
                scope["local"][name] = evaluated(waiting.pop(name).body["value"], scope, FUNCTIONS)
        for _, kind, name in self._module.resources:
            scope.setdefault(kind, {})[name] = _Lazy(self, kind, name)
        return scope

    def _instances(self, kind: str, name: str) -> dict[str, dict[str, Any]]:
        """The resource's instances by key; one of the key "" without `for_each`."""
        body = self._module.resources["resource", kind, name].body
        if "for_each" not in body:
            return {"": self._instance(kind, body, self._scope)}
        keys = evaluated(body["for_each"], self._scope, FUNCTIONS)
        return {
            key: self._instance(kind, body, {**self._scope, "each": {"key": key, "value": value}})
            for key, value in keys.items()
        }

    def _instance(self, kind: str, body: configuration.Body, scope: Mapping[str, Any]) -> dict[str, Any]:
        wanted = {
            "bucket",
            "condition",
            "managed_folder",
            "member",
            "name",
            "permissions",
            "project",
            "role",
            "role_id",
        }
        found = {
            name: evaluated(value, scope, FUNCTIONS) for name, value in configuration.arguments(body) if name in wanted
        }
        for dynamic in body.get("dynamic", []):
            inner = dynamic.get('"condition"')
            for value in evaluated(inner["for_each"], scope, FUNCTIONS) if inner else []:
                content = dict(configuration.arguments(inner["content"][0]))
                found["condition"] = evaluated(content, {**scope, "condition": {"value": value}}, FUNCTIONS)
        if kind == "google_project_iam_custom_role":
            found["id"] = f"projects/{found['project']}/roles/{found['role_id']}"
        return found

    def attribute(self, kind: str, name: str, key: str) -> Any:
        instances = self._instances(kind, name)
        return instances[""][key] if "" in instances and len(instances) == 1 else instances[key]


class _Lazy(Mapping[str, Any]):
    """A resource in an expression: its attributes, or its instances by key."""

    def __init__(self, module: BucketModule, kind: str, name: str) -> None:
        self._module = module
        self._of = (kind, name)

    def __getitem__(self, key: str) -> Any:
        return self._module.attribute(*self._of, key)

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


def _locals_in(body: configuration.Body) -> Iterator[str]:
    for text in configuration.expressions(body):
        for part in text.split("local.")[1:]:
            yield part.split(".")[0].split("[")[0].split(" ")[0].strip("{}(),\"'")
