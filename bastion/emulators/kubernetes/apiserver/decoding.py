"""Bodies of requests: media type, JSON, kind and version, options.

Sources: apiserver pkg/endpoints/handlers/{create,update,delete}.go and negotiation, apimachinery
pkg/apis/meta/v1/validation/validation.go.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bastion.emulators.kubernetes.apiserver import schemas
from bastion.emulators.kubernetes.apiserver.resources import Resource
from bastion.emulators.kubernetes.apiserver.routes import Query
from bastion.emulators.kubernetes.apiserver.statuses import (
    UNCHECKED,
    Problem,
    bad_request,
    invalid,
    invalid_value,
    not_supported,
    unsupported_media,
)

Object = dict[str, Any]
JSON = "application/json"
# Upstream's limit of a request's body.
BODY_MAX_BYTES = 3 * 1024 * 1024
_VALIDATIONS = ("Ignore", "Warn", "Strict")
_MANAGER_MAX = 128
_POLICIES = ("Foreground", "Background", "Orphan")


def media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def json_body(data: bytes, header: str) -> Any:
    """Raises ApiFailure (400, 415)."""
    if media_type(header) not in ("", JSON):
        raise unsupported_media((JSON, "application/yaml", "application/vnd.kubernetes.protobuf"))
    return parsed(data)


def parsed(data: bytes) -> Any:
    """Raises ApiFailure (400)."""
    try:
        return json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"invalid JSON in the request's body: {error}") from error


class _Repeating(dict[str, Any]):
    """An object with fields that are given twice."""

    repeated: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(name for name, _ in pairs)
    repeating = _Repeating(found)
    repeating.repeated = tuple(name for name in found if counts[name] > 1)
    return repeating


def repeated_fields(document: Any, path: str = "") -> list[str]:
    """The paths of fields that are given twice in a decoded body."""
    if isinstance(document, list):
        return [found for index, item in enumerate(document) for found in repeated_fields(item, f"{path}[{index}]")]
    if not isinstance(document, dict):
        return []
    prefix = f"{path}." if path else ""
    found = [f"{prefix}{name}" for name in document.repeated] if isinstance(document, _Repeating) else []
    return found + [inner for name, item in document.items() for inner in repeated_fields(item, f"{prefix}{name}")]


def check_kind(document: Any, resource: Resource) -> Object:
    """The object of a body, with kind and apiVersion. Raises ApiFailure (400)."""
    if not isinstance(document, dict):
        raise bad_request(f"the request's body is not a {resource.kind}: it is no JSON object")
    version, kind = document.get("apiVersion") or resource.api_version, document.get("kind") or resource.kind
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise bad_request(
            f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
            f"converting ({resource.version}.{kind}) to ({resource.version}.{resource.kind}): unknown conversion"
        )
    metadata = document.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise bad_request(f"the {resource.kind}'s metadata is no JSON object")
    return {**document, "kind": kind, "apiVersion": version, "metadata": metadata}


def check_fields(
    document: Object,
    resource: Resource,
    validation: str,
    *,
    twice: Sequence[str] = (),
    patch: bool = False,
    status: bool = False,
) -> tuple[Object, list[str]]:
    """The object without unknown fields, and warnings about them and about fields given twice.

    Raises ApiFailure (400, 422).
    """
    clean, findings = schemas.checked(resource.kind, document, custom=resource.custom)
    unknown = [f'duplicate field "{path}"' for path in twice]
    unknown += [f'unknown field "{path}"' for path in findings.unknown]
    name = str(document["metadata"].get("name") or "")
    text = ""
    if unknown and validation == "Strict":
        text = f"strict decoding error: {', '.join(unknown)}"
    elif findings.wrong and not resource.custom:
        text = f"json: cannot unmarshal {findings.wrong[0].detail}"
    if text and patch:
        raise invalid("", "", "", [invalid_value("patch", "", text)])
    if text:
        kind = resource.kind
        raise bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {text}')
    if findings.wrong or findings.problems or findings.mismatches:
        wrong = [_within_status(problem) if status else problem for problem in findings.wrong]
        blocking = [*wrong, *findings.problems]
        unchecked = [UNCHECKED] if blocking and resource.has_rules else []
        raise invalid(resource.kind, resource.group, name, [*blocking, *findings.mismatches, *unchecked])
    clean.setdefault("metadata", {})
    return clean, unknown if validation == "Warn" else []


def _within_status(problem: Problem) -> Problem:
    """A write of the status is validated from there on, which the text shows."""
    return dataclasses.replace(problem, detail=problem.detail.removeprefix("status."))


def is_dry_run(kind: str, values: list[str]) -> bool:
    """Whether `dryRun` is All. Raises ApiFailure (422)."""
    values = [value for value in values if value]
    if not values:
        return False
    if values != ["All"]:
        raise invalid(kind, "meta.k8s.io", "", [not_supported("dryRun", values, ["All"])])
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to create, update or patch; `validation` is Ignore, Warn or Strict."""

    dry_run: bool = False
    validation: str = "Warn"


def write_options(kind: str, query: Query) -> WriteOptions:
    """The options of a write from its query; `kind` is CreateOptions, for example. Raises ApiFailure (422)."""
    problems = []
    if len(manager := query.text("fieldManager")) > _MANAGER_MAX:
        problems.append(Problem("TooLong", "fieldManager", f"may not be more than {_MANAGER_MAX} bytes"))
    elif not manager.isprintable():
        problems.append(invalid_value("fieldManager", manager, "should only contain printable characters"))
    text = query.text("fieldValidation") or "Warn"
    if text not in _VALIDATIONS:
        problems.append(not_supported("fieldValidation", text, ["", *sorted(_VALIDATIONS)]))
    if problems:
        raise invalid(kind, "meta.k8s.io", "", problems)
    return WriteOptions(dry_run=is_dry_run(kind, query.all_values.get("dryRun", [])), validation=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """How to delete; `propagation` None: as the object's finalizers say, else in the background."""

    propagation: str | None = None
    grace_seconds: int | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False
    orphan_dependents: bool | None = None


def delete_options(data: bytes, header: str, query: Query) -> DeleteOptions:
    """From the body, or without one from the query. Raises ApiFailure (400, 415, 422)."""
    if data.strip():
        document = json_body(data, header)
        if not isinstance(document, dict):
            raise bad_request("the request's body is no DeleteOptions: it is no JSON object")
        if (kind := document.get("kind") or "DeleteOptions") != "DeleteOptions":
            raise bad_request(f"the request's body is a {kind}, not DeleteOptions")
    else:
        document = {
            "gracePeriodSeconds": query.number("gracePeriodSeconds"),
            "propagationPolicy": query.text("propagationPolicy") or None,
            "dryRun": query.all_values.get("dryRun", []),
        }
        if "orphanDependents" in query.values:
            document["orphanDependents"] = query.flag("orphanDependents")
    policy, orphan = document.get("propagationPolicy"), document.get("orphanDependents")
    problems: list[Problem] = []
    if policy is not None and orphan is not None:
        problems.append(
            invalid_value("propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set")
        )
    if policy is not None and policy not in _POLICIES:
        problems.append(not_supported("propagationPolicy", policy, [*_POLICIES, "nil"]))
    if problems:
        raise invalid("DeleteOptions", "meta.k8s.io", "", problems)
    grace = document.get("gracePeriodSeconds")
    if grace is not None and not isinstance(grace, int):
        raise bad_request("gracePeriodSeconds is no integer")
    preconditions = document.get("preconditions") or {}
    return DeleteOptions(
        propagation=policy,
        orphan_dependents=orphan,
        grace_seconds=grace,
        uid=preconditions.get("uid"),
        version=preconditions.get("resourceVersion"),
        dry_run=is_dry_run("DeleteOptions", document.get("dryRun") or []),
    )
