"""What label and field selectors select: apimachinery pkg/fields/selector.go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bastion.emulators.kubernetes.apiserver import label_selectors
from bastion.emulators.kubernetes.apiserver.resources import (
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    Resource,
)
from bastion.emulators.kubernetes.apiserver.statuses import bad_request

Object = dict[str, Any]
Matches = Callable[[Object], bool]

_METADATA_FIELDS = {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace"}
# The selectable fields of each kind, and where they stand: pkg/apis/core/v1/conversion.go, pkg/apis/batch/v1.
_FIELDS: Mapping[Resource, tuple[str, ...]] = {
    PODS: (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    NODES: ("spec.unschedulable",),
    NAMESPACES: ("status.phase",),
    SECRETS: ("type",),
    JOBS: ("status.successful",),
    EVENTS: (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
_ELSEWHERE = {"status.successful": "status.succeeded", "source": "source.component"}
# Fields that are never empty: their zero value.
_ZERO = {"spec.hostNetwork": "false", "spec.unschedulable": "false", "status.successful": "0"}


def everything(_document: Object) -> bool:
    return True


def labels(text: str) -> Matches:
    """The test of a `labelSelector`. Raises ApiFailure (400)."""
    try:
        terms = label_selectors.tests(text)
    except label_selectors.InvalidSelector as error:
        raise bad_request(str(error)) from error
    if not terms:
        return everything

    def matches(document: Object) -> bool:
        found = document["metadata"].get("labels") or {}
        return all(term(found) for term in terms)

    return matches


def fields(resource: Resource, text: str) -> Matches:
    """The test of a `fieldSelector`. Raises ApiFailure (400)."""
    terms = []
    for term in text.split(","):
        if not term:
            continue
        for operator in ("!=", "==", "="):
            name, found, value = term.partition(operator)
            if found:
                break
        else:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        terms.append((_path(resource, name), operator != "!=", value, _ZERO.get(name, "")))
    if not terms:
        return everything
    return lambda document: all((_read(document, path, zero) == value) is wanted for path, wanted, value, zero in terms)


def _path(resource: Resource, name: str) -> list[str]:
    if name in _METADATA_FIELDS or name in _FIELDS.get(resource, ()):
        return _ELSEWHERE.get(name, name).split(".")
    raise bad_request(f"field label not supported: {name}")


def _read(document: Object, path: list[str], zero: str) -> str:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or value == "":
        return zero
    return str(value).lower() if isinstance(value, bool) else str(value)
