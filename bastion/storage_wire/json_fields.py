"""The `fields` parameter of the JSON API: which parts of an answer a client wants.

Layer: storage_api. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bastion.storage_wire.refusals import Refusal

# For every wanted field what is wanted of it; None: all of it.
Projection = Mapping[str, "Projection | None"]

_DEPTH_MAX = 16


# Clients ask for the same few selections again and again.
@lru_cache(maxsize=256)
def projection(fields: str) -> Projection | None:
    """Reads the `fields` parameter: `a,b/c,d(e,f)`, or `*`.

    Returns:
        For every wanted field what is wanted of it, None meaning all; None: everything.
    """
    if fields.strip() in ("", "*"):
        return None
    tree, rest = _projection(fields.replace(" ", ""), 0)
    if rest:
        raise Refusal(
            400, "invalidParameter", f"Invalid field selection {fields[:80]!r}", location=("parameter", "fields")
        )
    return tree


def _projection(text: str, depth: int) -> tuple[dict[str, Projection | None], str]:
    """One level, up to the end or the closing parenthesis; and what is left of the text."""
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
            # A path is one field of one level; what follows its comma belongs to this level again.
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
    """What one or the other asks for: `items/name,items/size` is one field twice."""
    if first is None or second is None:
        return None
    merged = dict(first)
    for name, inner in second.items():
        merged[name] = _either(merged[name], inner) if name in merged else inner
    return merged


def projected(value: Any, wanted: Projection | None) -> Any:
    """The parts of a JSON value that a projection asks for; lists are looked through."""
    if wanted is None or "*" in wanted:
        return value
    if isinstance(value, list):
        return [projected(item, wanted) for item in value]
    if isinstance(value, dict):
        return {name: projected(value[name], inner) for name, inner in wanted.items() if name in value}
    return value


def names(wanted: Projection | None) -> frozenset[str] | None:
    """The fields of which anything is wanted; None: every one."""
    return None if wanted is None or "*" in wanted else frozenset(wanted)
