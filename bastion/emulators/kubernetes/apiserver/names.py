"""Rules for names, labels and annotations: apimachinery pkg/util/validation and pkg/api/validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bastion.emulators.kubernetes.apiserver.statuses import Problem, invalid_value, required

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_ENVIRONMENT = re.compile(r"[ -<>-~]+")

_ANNOTATIONS_MAX_BYTES = 256 * 1024


def label(name: str) -> list[str]:
    """Why a name is no RFC 1123 label (IsDNS1123Label)."""
    if len(name) <= 63 and "." in name and _SUBDOMAIN.fullmatch(name):
        return ["must not contain dots"]
    return _checked(
        name,
        63,
        _LABEL,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end"
        " with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is"
        f" '{_LABEL.pattern}')",
    )


def label_1035(name: str) -> list[str]:
    """Why a name is no RFC 1035 label (IsDNS1035Label)."""
    return _checked(
        name,
        63,
        _LABEL_1035,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic"
        " character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation"
        f" is '{_LABEL_1035.pattern}')",
    )


def subdomain(name: str) -> list[str]:
    """Why a name is no RFC 1123 subdomain (IsDNS1123Subdomain)."""
    return _checked(
        name,
        253,
        _SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start"
        " and end with an alphanumeric character (e.g. 'example.com', regex used for validation is"
        f" '{_SUBDOMAIN.pattern}')",
    )


def environment(name: str) -> list[str]:
    """Why a name is no name of a variable (IsRelaxedEnvVarName, the rule since Kubernetes 1.32)."""
    if not name:
        return ["environment variable name must not be empty"]
    if _ENVIRONMENT.fullmatch(name) is None:
        return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]
    return []


def qualified(name: str) -> list[str]:
    """Why a name is no `prefix/name` of a label, an annotation or a resource (IsQualifiedName)."""
    prefix, slash, rest = name.rpartition("/")
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in subdomain(prefix)]
        if "/" in prefix:
            return ["a qualified name must consist of a name and an optional prefix with one '/'"]
    if not rest:
        problems.append("name part must be non-empty")
    elif len(rest) > 63:
        problems.append("name part must be no more than 63 bytes")
    elif _QUALIFIED.fullmatch(rest) is None:
        problems.append(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
            " alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
            f" '{_QUALIFIED.pattern}')"
        )
    return problems


def label_value(value: str) -> list[str]:
    """Why a value is not valid for a label (IsValidLabelValue)."""
    return _checked(
        value,
        63,
        _VALUE,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start"
        " and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for"
        f" validation is '{_VALUE.pattern}')",
        unit="bytes",
    )


def _checked(value: str, longest: int, form: re.Pattern[str], text: str, unit: str = "characters") -> list[str]:
    problems = [f"must be no more than {longest} {unit}"] if len(value) > longest else []
    if form.fullmatch(value) is None:
        problems.append(text)
    return problems


def labels_problems(labels: Mapping[str, Any], field: str) -> list[Problem]:
    problems = []
    for key, value in labels.items():
        problems += [invalid_value(field, key, why) for why in qualified(key)]
        problems += [invalid_value(field, value, why) for why in label_value(str(value))]
    return problems


def annotations_problems(annotations: Mapping[str, Any], field: str) -> list[Problem]:
    problems = [invalid_value(field, key, why) for key in annotations for why in qualified(key.lower())]
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > _ANNOTATIONS_MAX_BYTES:
        problems.append(Problem("TooLong", field, f"may not be more than {_ANNOTATIONS_MAX_BYTES} bytes"))
    return problems


def owners_problems(owners: list[Any], field: str) -> list[Problem]:
    """apimachinery pkg/api/validation/objectmeta.go, ValidateOwnerReferences."""
    problems = []
    for owner in owners:
        for name, text in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(name):
                problems.append(invalid_value(f"{field}.{name}", owner.get(name, ""), text))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        first, second = (f"{owner['kind']}/{owner['name']}" for owner in controllers[:2])
        text = (
            f'Only one reference can have Controller set to true. Found "true" in references for {first} and {second}'
        )
        problems.append(invalid_value(field, owners, text))
    return problems


def name_problems(name: str, field: str, why: list[str]) -> list[Problem]:
    return [invalid_value(field, name, text) for text in why] if name else [required(field)]
