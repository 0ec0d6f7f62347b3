"""Plain values as JSON and back, by their type hints: dataclasses, pydantic models, enums, mappings and sequences.

For documents that only this program reads, such as recorded ticks.
"""

from __future__ import annotations

import json
import types
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobSpec


def encode(value: Any) -> Any:
    """Return the value as JSON types, without fields that have their default; raises TypeError if it has none."""
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True)
        case JobSpec():
            return {"name": value.name, "document": value.packed.unpack()}
        case Mapping():
            return {_key(key): encode(item) for key, item in value.items()}
        case list() | tuple():
            return [encode(item) for item in value]
        case frozenset():
            return sorted(map(encode, value))
    if is_dataclass(value):
        defaults = _defaults(value.__class__)
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        return {name: encode(item) for name, item in given.items() if item != defaults.get(name, MISSING)}
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def decode(hint: Any, data: Any) -> Any:
    """Return the value of that type from which `encode` made `data`; raises ValueError, TypeError or KeyError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return data
    if origin is Annotated:
        return decode(arguments[0], data)
    if origin in (Union, types.UnionType):
        (only,) = (each for each in arguments if each is not type(None))
        return None if data is None else decode(only, data)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(decode(arguments[0], item) for item in data)
        return tuple(decode(each, item) for each, item in zip(arguments, data, strict=True))
    if origin in (list, frozenset):
        return origin(decode(arguments[0], item) for item in data)
    if origin is not None and issubclass(origin, Mapping):
        return {_of_key(arguments[0], key): decode(arguments[1], item) for key, item in data.items()}
    if hint is JobSpec:
        return job_spec.from_document(data["document"], name=data["name"])
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint.model_validate_json(json.dumps(data))
    if is_dataclass(hint):
        kind: Any = hint
        hints = _hints(kind)
        return kind(**{name: decode(hints[name], item) for name, item in data.items()})
    if hint is bytes:
        return str(data).encode()
    return hint(data)


def _key(key: Any) -> str:
    return str(key.value) if isinstance(key, Enum) else str(key)


def _of_key(hint: Any, key: str) -> Any:
    return hint(key) if isinstance(hint, type) else key


@cache
def _hints(of: Hashable) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


@cache
def _defaults(of: Any) -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(of) if each.default is not MISSING}
    made = {each.name: each.default_factory() for each in fields(of) if each.default_factory is not MISSING}
    return {**defaults, **made}
