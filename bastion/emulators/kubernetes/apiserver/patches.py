"""The three patch formats that are emulated: merge (RFC 7386), JSON (RFC 6902), and strategic merge where it equals
a merge."""

from __future__ import annotations

import copy
from typing import Any

from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure, bad_request, not_emulated

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")
_OPERATIONS_MAX = 10_000


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386; the target is not changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def strategic(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A strategic merge patch without lists or directives, apart from finalizers, which are joined.

    Raises ApiFailure (501).
    """
    metadata = patch.get("metadata")
    finalizers = metadata.get("finalizers") if isinstance(metadata, dict) else None
    _check_simple({**patch, "metadata": {**(metadata or {}), "finalizers": None}} if finalizers else patch)
    result: dict[str, Any] = merged(target, patch)
    if finalizers:
        present = target["metadata"].get("finalizers") or []
        result["metadata"]["finalizers"] = list(dict.fromkeys([*present, *finalizers]))
    return result


def _check_simple(value: Any) -> None:
    if isinstance(value, list) and value:
        raise not_emulated("a strategic merge patch with lists", f"use {MERGE}")
    if isinstance(value, dict):
        for name, inner in value.items():
            if name.startswith("$"):
                raise not_emulated(f"the directive {name} of strategic merge patches", f"use {MERGE}")
            _check_simple(inner)


def applied(target: Any, operations: Any) -> Any:
    """RFC 6902; the target is not changed. Raises ApiFailure: 400 for no patch, 422 for one that does not fit."""
    if not isinstance(operations, list) or not all(isinstance(step, dict) for step in operations):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > _OPERATIONS_MAX:
        raise ApiFailure(
            413, "RequestEntityTooLarge", f"The allowed maximum operations in a JSON patch is {_OPERATIONS_MAX}"
        )
    result = copy.deepcopy(target)
    for step in operations:
        result = _step(result, step)
    return result


def _step(document: Any, step: dict[str, Any]) -> Any:
    path = _pointer(step.get("path"))
    match step.get("op"):
        case "add":
            return _add(document, path, copy.deepcopy(step.get("value")))
        case "remove":
            return _remove(document, path)
        case "replace":
            _find(document, path)
            return _replace(document, path, copy.deepcopy(step.get("value")))
        case "move":
            source = _pointer(step.get("from"))
            value = _find(document, source)
            return _add(_remove(document, source), path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_find(document, _pointer(step.get("from")))))
        case "test":
            if _find(document, path) != step.get("value"):
                raise _unfit(f"testing value {step.get('path')} failed")
            return document
        case other:
            raise bad_request(f"Unexpected kind: {other}")


def _unfit(text: str) -> ApiFailure:
    """apiserver pkg/endpoints/handlers/patch.go: NewGenericServerResponse with 422."""
    return ApiFailure(422, "Invalid", f"the server rejected our request due to an error in our request: {text}")


def _pointer(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise _unfit(f"invalid path {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _find(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(part, len(document) - 1)]
        else:
            raise _unfit(f"missing value: /{'/'.join(path)}")
    return document


def _index(part: str, highest: int) -> int:
    if not part.isdigit() or int(part) > highest:
        raise _unfit(f"invalid array index {part!r}")
    return int(part)


def _parent(document: Any, path: list[str]) -> Any:
    parent = _find(document, path[:-1])
    if not isinstance(parent, dict | list):
        raise _unfit(f"missing container: /{'/'.join(path[:-1])}")
    return parent


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        parent.insert(len(parent) if path[-1] == "-" else _index(path[-1], len(parent)), value)
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _parent(document, path)
    parent[path[-1] if isinstance(parent, dict) else int(path[-1])] = value
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise _unfit("the whole document cannot be removed")
    _find(document, path)
    parent = _parent(document, path)
    del parent[path[-1] if isinstance(parent, dict) else int(path[-1])]
    return document
