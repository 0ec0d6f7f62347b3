"""Patterns of object names (`matchGlob`): `*` and `?` stay between slashes, `**` does not; sets and alternatives.

Layer: emulator. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

from bastion.emulator.gcs.resources import InvalidRequest

_GLOB_MAX_CHARS = 1024


@lru_cache(maxsize=256)
def compiled(glob: str) -> re.Pattern[str]:
    """The pattern as a regular expression for whole names.

    Raises:
        InvalidRequest: a bracket is not closed, or the pattern is too long.
    """
    if len(glob) > _GLOB_MAX_CHARS:
        raise InvalidRequest(f"A glob of {len(glob)} characters; {_GLOB_MAX_CHARS} are the most.")
    parts = []
    depth = position = 0
    while position < len(glob):
        character = glob[position]
        position += 1
        match character:
            case "*" if glob.startswith("*", position):
                position += 1
                parts.append(".*")
            case "*":
                parts.append("[^/]*")
            case "?":
                parts.append("[^/]")
            case "[":
                position, part = _set(glob, position)
                parts.append(part)
            case "{":
                depth += 1
                parts.append("(?:")
            case "}" if depth:
                depth -= 1
                parts.append(")")
            case "," if depth:
                parts.append("|")
            case "\\" if position < len(glob):
                parts.append(re.escape(glob[position]))
                position += 1
            case _:
                parts.append(re.escape(character))
    if depth:
        raise _unclosed(glob, "{")
    return re.compile("".join(parts), re.DOTALL)


def _set(glob: str, position: int) -> tuple[int, str]:
    """The set that begins before `position`: where it ends, and its regular expression."""
    negated = position < len(glob) and glob[position] in "!^"
    start = position + negated
    # A bracket that stands first in a set is one of its characters.
    end = glob.find("]", start + 1)
    if end < 0:
        raise _unclosed(glob, "[")
    members = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", glob[start:end])
    try:
        re.compile(f"[{members}]")
    except re.error as error:
        raise InvalidRequest(f"Invalid glob {glob[:80]!r}: {error}.") from error
    return end + 1, f"[^/{members}]" if negated else f"[{members}]"


def _unclosed(glob: str, bracket: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid glob {glob[:80]!r}: a {bracket} is not closed.")
