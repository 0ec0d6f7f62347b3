"""Fields and types of the served kinds, from `fields*.txt`: what a client misspells or gives the wrong type.

Sources: apimachinery pkg/runtime/serializer/json (strict decoding) for built-in kinds, apiextensions-apiserver
pkg/apiserver/{validation,schema/pruning} for custom ones.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bastion.emulators.kubernetes.apiserver.statuses import Problem, invalid_value, not_supported, required

_FIELD = re.compile(r"(\w+)([!~]?):([^(]+)(?:\((.*)\))?")
_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
# Without the fraction, which only MicroTime has.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_CUSTOM_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
# In templates of custom kinds only some metadata is kept.
_CUSTOM_TYPES = {"PodTemplateSpec": {"metadata": "TemplateMeta"}}


@dataclass(frozen=True, slots=True)
class Field:
    type: str
    required: bool
    nullable: bool
    values: tuple[str, ...]


@functools.cache
def types() -> Mapping[str, Mapping[str, Field]]:
    """The fields of all types."""
    text = "".join(Path(__file__).with_name(name).read_text() for name in ("fields.txt", "fields_kueue.txt"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\n  ", " ")
    found: dict[str, dict[str, Field]] = {}
    for line in joined.splitlines():
        name, *fields = line.split()
        found[name] = {}
        for part in fields:
            parsed = _FIELD.fullmatch(part)
            assert parsed is not None, f"fields.txt: {part!r} is not a valid field"
            values = tuple(parsed[4].split("|")) if parsed[4] else ()
            found[name][parsed[1]] = Field(parsed[3], parsed[2] == "!", parsed[2] == "~", values)
    return found


@dataclass(slots=True)
class Findings:
    """What was found in one document.

    Attributes:
        unknown: Paths of unknown fields, which are dropped.
        wrong: Values of a wrong type.
        problems: Of custom kinds: required fields and enumerations.
        mismatches: Of custom kinds: texts that are no quantities.
    """

    unknown: list[str] = field(default_factory=list)
    wrong: list[Problem] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    mismatches: list[Problem] = field(default_factory=list)


def checked(kind: str, document: Mapping[str, Any], *, custom: bool) -> tuple[dict[str, Any], Findings]:
    """The document without unknown fields and nulls, and what was found in it."""
    findings = Findings()
    clean = _object(kind, document, "", custom, findings)
    return clean, findings


def _object(name: str, value: Mapping[str, Any], path: str, custom: bool, findings: Findings) -> dict[str, Any]:
    fields = types()[name]
    clean = {}
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        known = fields.get(key)
        if known is None:
            findings.unknown.append(where)
            continue
        if inner is None:
            # In Go the zero value; dropped here, apart from times in templates, which stay null upstream.
            continue
        inner_type = _CUSTOM_TYPES.get(name, {}).get(key, known.type) if custom else known.type
        clean[key] = _value(inner_type, inner, where, custom, findings)
        if custom and known.values and inner not in known.values:
            findings.problems.append(not_supported(where, inner, known.values))
    for key, known in fields.items():
        if known.nullable and key not in clean:
            clean[key] = None
    if custom:
        missing = [key for key, known in fields.items() if known.required and key not in clean]
        findings.problems += [required(f"{path}.{key}" if path else key) for key in missing]
    return clean


def _value(type_name: str, value: Any, path: str, custom: bool, findings: Findings) -> Any:
    if type_name == "any":
        return value
    if type_name.startswith("["):
        if not isinstance(value, list):
            return _wrong("array", value, path, findings)
        return [
            _value(type_name[1:-1], inner, f"{path}[{index}]", custom, findings) for index, inner in enumerate(value)
        ]
    if type_name.startswith("{"):
        if not isinstance(value, dict):
            return _wrong("object", value, path, findings)
        return {
            key: _zero(type_name[1:-1])
            if inner is None
            else _value(type_name[1:-1], inner, f"{path}.{key}", custom, findings)
            for key, inner in value.items()
        }
    if type_name in types():
        if not isinstance(value, dict):
            return _wrong("object", value, path, findings)
        return _object(type_name, value, path, custom, findings)
    if custom and type_name == "quantity" and isinstance(value, str) and not _is_scalar(type_name, value):
        findings.mismatches.append(invalid_value(path, value, f"{path} in body should match '{_CUSTOM_QUANTITY}'"))
        return value
    return value if _is_scalar(type_name, value) else _wrong(type_name, value, path, findings)


def _zero(type_name: str) -> str:
    """What Go makes of a null in a map."""
    return "0" if type_name == "quantity" else ""


def _is_scalar(type_name: str, value: Any) -> bool:
    match type_name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bytes":
            return isinstance(value, str) and _is_base64(value)
        case "time":
            return isinstance(value, str) and _TIME.fullmatch(value) is not None
        case "quantity":
            text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
            return isinstance(text, str) and _QUANTITY.fullmatch(text) is not None
        case _:
            raise AssertionError(f"fields.txt: {type_name!r} is not a type")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _wrong(type_name: str, value: Any, path: str, findings: Findings) -> Any:
    shown = _TYPE_NAMES.get(type(value), "object")
    expected = {"time": "string", "quantity": "string", "bytes": "string"}.get(type_name, type_name)
    detail = f'{path} in body must be of type {expected}: "{shown}"'
    findings.wrong.append(Problem("TypeInvalid", path, detail, shown))
    return value
