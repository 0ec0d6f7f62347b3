"""The `fields` parameter of the JSON API, which selects parts of an answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bastion.storage_wire.refusals import Refusal

# For each selected field, the selection within it; None: all.
Projection = Mapping[str, "Projection | None"]

_DEPTH_MAX = 16


# Clients repeat a few selections.
@lru_cache(maxsize=256)
def projection(fields: str) -> Projection | None:
    """Parse `fields`: `a,b/c,d(e,f)`, or `*`. None means everything."""
    if fields.strip() in ("", "*"):
        return None
    tree, rest = _projection(fields.replace(" ", ""), 0)
    if rest:
        raise Refusal(
            400, "invalidParameter", f"Invalid field selection {fields[:80]!r}", location=("parameter", "fields")
        )
    return tree


def _projection(text: str, depth: int) -> tuple[dict[str, Projection | None], str]:
    """Parse one level, to the end or the closing parenthesis; return the remaining text."""
    tree: dict[str, Projection | None] = {}
    while text and depth < _DEPTH_MAX:
        length = 0
        while length < len(text) and text[length] not in ",/()":
            length += 1
        name, text = text[:length], text[length:]
        inner: Mapping[str, Projection | None] | None = None
        if text.startswith("("):
            inner, text = _projection(text[1:], depth + 1)
            if not text.startswith(")"):
                return {}, "("
            text = text[1:]
        elif text.startswith("/"):
            # A path is one field per level; after its comma this level continues.
            end = next((at for at in range(1, len(text)) if text[at] in ",()"), len(text))
            if end < len(text) and text[end] == "(":
                end = text.find(")", end) + 1 or len(text)
            inner, left = _projection(text[1:end], depth + 1)
            if left:
                return {}, left
            text = text[end:]
        tree[name] = _either(tree[name], inner) if name in tree else inner
        if not text.startswith(","):
            break
        text = text[1:]
    return tree, text


def _either(first: Projection | None, second: Projection | None) -> Projection | None:
    """Return the union of two selections: `items/name,items/size` is one field twice."""
    if first is None or second is None:
        return None
    merged = dict(first)
    for name, inner in second.items():
        merged[name] = _either(merged[name], inner) if name in merged else inner
    return merged


def projected(value: Any, wanted: Projection | None) -> Any:
    """Select parts of a JSON value; lists are traversed."""
    if wanted is None or "*" in wanted:
        return value
    if isinstance(value, list):
        return [projected(item, wanted) for item in value]
    if isinstance(value, dict):
        return {name: projected(value[name], inner) for name, inner in wanted.items() if name in value}
    return value


def names(wanted: Projection | None) -> frozenset[str] | None:
    """Return the names of selected fields; None: all."""
    return None if wanted is None or "*" in wanted else frozenset(wanted)
