"""Label and field selectors: apimachinery pkg/labels/selector.go and pkg/fields/selector.go."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bastion.emulators.kubernetes.apiserver import names
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

_SET_FORM = re.compile(r"\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)\s*")
_PAIR_FORM = re.compile(r"\s*([^\s!=,()<>]+)\s*(==|=|!=)\s*([^\s!=,()<>]*)\s*")
_EXISTS_FORM = re.compile(r"\s*(!?)\s*([^\s!=,()<>]+)\s*")
_ORDER_FORM = re.compile(r"\s*([^\s!=,()<>]+)\s*([<>])\s*(-?\d+)\s*")


def everything(_document: Object) -> bool:
    return True


def labels(text: str) -> Matches:
    """The test of a `labelSelector`. Raises ApiFailure (400)."""
    terms = [_label_term(term) for term in _split(text)] if text.strip() else []
    if not terms:
        return everything

    def matches(document: Object) -> bool:
        found = document["metadata"].get("labels") or {}
        return all(term(found) for term in terms)

    return matches


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    terms, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            terms.append(text[start:position])
            start = position + 1
    return [*terms, text[start:]]


def _label_term(term: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET_FORM.fullmatch(term):
        key, operator, listed = found.groups()
        values = {_value(value.strip()) for value in listed.split(",")}
        _key(key)
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _PAIR_FORM.fullmatch(term):
        key, operator, value = found.groups()
        _key(key)
        _value(value)
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _ORDER_FORM.fullmatch(term):
        key, operator, number = found.groups()
        _key(key)
        return lambda labels: _is_beyond(labels.get(key), operator, int(number))
    if found := _EXISTS_FORM.fullmatch(term):
        absent, key = found.groups()
        _key(key)
        return (lambda labels: key not in labels) if absent else (lambda labels: key in labels)
    raise bad_request(f"unable to parse requirement: {term.strip() or 'found end of text'!r}")


def _is_beyond(value: str | None, operator: str, limit: int) -> bool:
    try:
        number = int(value or "")
    except ValueError:
        return False
    return number > limit if operator == ">" else number < limit


def _key(key: str) -> None:
    if why := names.qualified(key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {"; ".join(why)}')


def _value(value: str) -> str:
    if why := names.label_value(value):
        raise bad_request(
            f'unable to parse requirement: values[0][{value}]: Invalid value: "{value}": {"; ".join(why)}'
        )
    return value


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
        terms.append((_path(resource, name, text), operator != "!=", value, _ZERO.get(name, "")))
    if not terms:
        return everything
    return lambda document: all((_read(document, path, zero) == value) is wanted for path, wanted, value, zero in terms)


def _path(resource: Resource, name: str, text: str) -> list[str]:
    if name in _METADATA_FIELDS or name in _FIELDS.get(resource, ()):
        return _ELSEWHERE.get(name, name).split(".")
    raise bad_request(
        f'Unable to find "{resource.group}/{resource.version}, Resource={resource.plural}" that match label selector'
        f' "", field selector "{text}": field label not supported: {name}'
    )


def _read(document: Object, path: list[str], zero: str) -> str:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or value == "":
        return zero
    return str(value).lower() if isinstance(value, bool) else str(value)
