"""Terraform's files below a folder, parsed by python-hcl2: modules with what they declare."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hcl2

Body = dict[str, Any]


class NotHcl(ValueError):
    """A file is not valid HCL."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A block of a module: its place, for messages, and what is in it."""

    place: str
    body: Body


@dataclass(slots=True)
class Module:
    """The files of one folder. Resources and data sources are by kind, type and name; the rest by name."""

    folder: Path
    variables: dict[str, Declared] = field(default_factory=dict)
    outputs: dict[str, Declared] = field(default_factory=dict)
    resources: dict[tuple[str, str, str], Declared] = field(default_factory=dict)
    calls: dict[str, Declared] = field(default_factory=dict)
    providers: dict[str, Declared] = field(default_factory=dict)
    local_values: dict[str, Declared] = field(default_factory=dict)
    settings: list[Declared] = field(default_factory=list)

    def declared(self) -> Iterator[Declared]:
        for group in (self.variables, self.outputs, self.resources, self.calls, self.providers, self.local_values):
            yield from group.values()
        yield from self.settings


def load(root: Path, planted: Mapping[str, str] | None = None) -> dict[Path, Module]:
    """Return the modules below the folder. `planted` has texts to read instead of files, by path below it."""
    modules: dict[Path, Module] = {}
    for path in sorted(root.rglob("*.tf")):
        name = path.relative_to(root).as_posix()
        module = modules.setdefault(path.parent, Module(path.parent))
        _add(module, name, parse(name, (planted or {}).get(name) or path.read_text("utf-8")))
    return modules


@functools.cache
def parse(name: str, text: str) -> Body:
    """Parse one file. Raises NotHcl."""
    try:
        return hcl2.loads(text)
    except Exception as fault:  # noqa: BLE001 - the parser's own errors have no common class
        raise NotHcl(f"{name}: not valid HCL: {str(fault).splitlines()[0]}") from None


def blocks(body: Body) -> Iterator[tuple[str, Body]]:
    """The blocks in a body, `dynamic` ones by the name that they stand for."""
    for name, value in body.items():
        for one in value if isinstance(value, list) else []:
            if not (isinstance(one, dict) and one):
                continue
            if name == "dynamic":
                ((label, dynamic),) = ((key, inner) for key, inner in one.items() if not key.startswith("__"))
                yield from ((unquoted(label), inner) for inner in dynamic["content"])
            elif one.get("__is_block__"):
                yield name, one


def arguments(body: Body) -> Iterator[tuple[str, Any]]:
    """What stands as NAME = VALUE in a body."""
    taken = {name for name, _ in blocks(body)} | {"dynamic"}
    yield from ((name, value) for name, value in body.items() if name not in taken and not name.startswith("__"))


def expressions(value: Any) -> Iterator[str]:
    """All texts in a body or value, keys of objects too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from expressions(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if not key.startswith("__"):
                yield from expressions(key)
                yield from expressions(one)


def unquoted(text: Any) -> str:
    """A literal string without its quotes; other expressions as they are."""
    return text[1:-1] if isinstance(text, str) and text.startswith('"') and text.endswith('"') else str(text)


def _add(module: Module, name: str, body: Body) -> None:
    for kind in ("resource", "data"):
        for one in body.get(kind, []):
            ((type_, by_name),) = _labels(one)
            ((own, inner),) = _labels(by_name)
            module.resources[kind, type_, own] = Declared(f"{name}: {kind} {type_}.{own}", inner)
    for kind, group in (
        ("variable", module.variables),
        ("output", module.outputs),
        ("module", module.calls),
        ("provider", module.providers),
    ):
        for one in body.get(kind, []):
            ((own, inner),) = _labels(one)
            group[own] = Declared(f"{name}: {kind} {own}", inner)
    for one in body.get("locals", []):
        for own, value in one.items():
            if not own.startswith("__"):
                module.local_values[own] = Declared(f"{name}: local {own}", {"value": value})
    module.settings += [Declared(f"{name}: terraform", one) for one in body.get("terraform", [])]


def _labels(one: Body) -> list[tuple[str, Body]]:
    return [(unquoted(key), inner) for key, inner in one.items() if not key.startswith("__")]
