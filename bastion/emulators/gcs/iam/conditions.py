"""IAM conditions, as far as Bastion's bindings use them: one test of `resource.name`.

    resource.name.startsWith("...")    resource.name.endsWith("...")
    resource.name.extract("before{any}after") != "..."    (or ==)

`extract` gives the text between the first `before` and the next `after`, or none (Google's page "Attribute reference
for IAM Conditions").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

_TEXT = r'("(?:[^"\\]|\\.)*")'
_AFFIX = re.compile(rf"resource\.name\.(startsWith|endsWith)\(\s*{_TEXT}\s*\)")
_EXTRACT = re.compile(rf"resource\.name\.extract\(\s*{_TEXT}\s*\)\s*(==|!=)\s*{_TEXT}")
_TEMPLATE = re.compile(r"([^{}]*)\{\w+\}([^{}]*)")

Condition = Callable[[str], bool]


class NotSupported(ValueError):
    """A condition that this endpoint cannot evaluate."""


@lru_cache(maxsize=256)
def compiled(expression: str) -> Condition:
    """Return the test of a resource's name. Raises NotSupported."""
    text = expression.strip()
    try:
        if match := _AFFIX.fullmatch(text):
            affix = json.loads(match[2])
            return (
                (lambda name: name.startswith(affix)) if match[1] == "startsWith" else lambda name: name.endswith(affix)
            )
        if match := _EXTRACT.fullmatch(text):
            template = _TEMPLATE.fullmatch(json.loads(match[1]))
            wanted = json.loads(match[3])
            if template is not None:
                before, after, equal = template[1], template[2], match[2] == "=="
                return lambda name: (extracted(name, before, after) == wanted) is equal
    except ValueError as error:
        raise NotSupported(f"The condition {expression[:200]!r} has a text that is not valid.") from error
    raise NotSupported(
        f"This endpoint cannot evaluate the condition {expression[:200]!r}; use one test of resource.name with "
        "startsWith, endsWith or extract."
    )


def extracted(name: str, before: str, after: str) -> str:
    """The part of a name between `before` and the next `after`; empty if either is missing."""
    start = name.find(before)
    if start < 0:
        return ""
    start += len(before)
    end = name.find(after, start) if after else len(name)
    return name[start:end] if end >= 0 else ""
