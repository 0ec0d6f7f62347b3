"""What a Terraform provider accepts: names and types of arguments, by resource type and nested block.

As text (`tests/deploy/schema/PROVIDER.txt`), one line for each block:

    PATH KIND NAME:TYPE[MARK] ...

PATH is `resource.TYPE`, `data.TYPE` or `provider.NAME`, and the names of the blocks below it. MARK is `!`
(required), `~` (optional, else computed), `=` (computed only), or nothing (optional). TYPE is s, n, b (string, number,
bool), with l, e, m before it (list, set, map of it), or any; `any(a,b)` has the fields of an object.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path


class Kind(enum.Enum):
    """How often a block may stand in the one around it."""

    SINGLE = "single"
    ONE = "one"  # a list of at most one
    LIST = "list"
    SET = "set"


@dataclass(frozen=True, slots=True)
class Attribute:
    type: str
    required: bool = False
    optional: bool = False
    computed: bool = False
    fields: frozenset[str] = frozenset()

    @property
    def settable(self) -> bool:
        return self.required or self.optional


@dataclass(frozen=True, slots=True)
class Block:
    attributes: dict[str, Attribute] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    kind: Kind = Kind.SINGLE
    required: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """One provider at one version. `blocks` is by `resource.TYPE`, `data.TYPE` and `provider.NAME`."""

    provider: str
    version: str
    blocks: dict[str, Block]


_MARKS = {"!": (True, False, False), "~": (False, True, True), "=": (False, False, True), "": (False, True, False)}
_TOKEN = re.compile(r"(\w+):(\w+)(?:\(([\w,]*)\))?([!~=]?)")


def dump(schema: Schema) -> str:
    lines = [f"{schema.provider} {schema.version}"]
    for path, block in sorted(schema.blocks.items()):
        lines += _lines(path, block)
    return "\n".join(lines) + "\n"


def load(path: Path) -> Schema:
    first, *lines = path.read_text().splitlines()
    provider, version = first.split()
    found: dict[str, Block] = {}
    for line in lines:
        where, kind, *tokens = line.split()
        attributes = {}
        for name, type_, fields, mark in (_TOKEN.fullmatch(token).groups() for token in tokens):  # type: ignore[union-attr]
            attributes[name] = Attribute(type_, *_MARKS[mark], fields=frozenset((fields or "").split(",")) - {""})
        block = Block(attributes, {}, Kind(kind.rstrip("!")), kind.endswith("!"))
        names = where.split(".")
        if len(names) == 2:
            found[where] = block
            continue
        parent = found[".".join(names[:2])]
        for name in names[2:-1]:
            parent = parent.blocks[name]
        parent.blocks[names[-1]] = block
    return Schema(provider, version, found)


def _lines(path: str, block: Block) -> list[str]:
    tokens = [f"{name}:{_shown(attribute)}" for name, attribute in sorted(block.attributes.items())]
    lines = [" ".join([path, block.kind.value + "!" * block.required, *tokens])]
    for name, inner in sorted(block.blocks.items()):
        lines += _lines(f"{path}.{name}", inner)
    return lines


def _shown(attribute: Attribute) -> str:
    flags = (attribute.required, attribute.optional, attribute.computed)
    mark = next(mark for mark, wanted in _MARKS.items() if wanted == flags)
    return attribute.type + (f"({','.join(sorted(attribute.fields))})" if attribute.fields else "") + mark
