"""Membership patterns, bounded so that none can hang the daemon.

The daemon matches every user against every pattern, and everybody may choose a user id. Python's `re` backtracks:
`(a+)+b` on such an id never ends. `quota.matching` takes linear time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from quota.matching import TEXT_MAX_CHARS, Matcher, NotMatchable

# A longer id matches no pattern.
USER_ID_MAX_CHARS = TEXT_MAX_CHARS
PATTERN_MAX_CHARS = 256
# Instructions of all patterns of a file together: what one user costs at most.
FILE_COST_MAX = 50_000

# A user id, with escaped or open dots. Most patterns are user ids, and any number of them is matched at once.
_USER_ID = re.compile(r"(?:[A-Za-z0-9_@.-]|\\[.@_+-]){1,128}", re.ASCII)
_ESCAPED = re.compile(r"\\(.)")


class UnsafePattern(ValueError):
    """The pattern is not valid, or could take too long; the message says what to change."""


def check_pattern(pattern: str) -> int:
    """Return the cost of a pattern in instructions; 0 for a user id. Raises UnsafePattern."""
    if not pattern:
        raise UnsafePattern("the pattern is empty; write a user id or delete it")
    if len(pattern) > PATTERN_MAX_CHARS:
        raise UnsafePattern(
            f"the pattern is {len(pattern)} characters long; the maximum is {PATTERN_MAX_CHARS}; "
            "split it into several patterns"
        )
    return 0 if _USER_ID.fullmatch(pattern) else _matcher(pattern).cost


class Members:
    """The members of one project; `cost` bounds the work of `has`, in instructions."""

    __slots__ = ("_ids", "_matchers", "cost")

    def __init__(self, patterns: Iterable[str]) -> None:
        costs = {pattern: check_pattern(pattern) for pattern in patterns}
        self._ids = _UserIds(pattern for pattern, cost in costs.items() if not cost)
        self._matchers = tuple(_matcher(pattern) for pattern, cost in costs.items() if cost)
        self.cost = 1 + sum(costs.values())

    def has(self, user: str) -> bool:
        """Whether a pattern matches the whole user id; ids over 128 characters match none."""
        if self._ids.has(user):
            return True
        if not self._matchers or len(user) > USER_ID_MAX_CHARS:
            return False
        return any(matcher.matches(user) for matcher in self._matchers)


class _UserIds:
    """Patterns that are user ids, in which an open dot still matches any character.

    They are indexed by length and open dots, so one lookup covers all patterns that agree in both.
    """

    __slots__ = ("_by_length",)

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_length: dict[int, dict[tuple[int, ...], set[str]]] = {}
        for pattern in patterns:
            # Replace escaped characters, so that the remaining dots are the open ones.
            bare = _ESCAPED.sub("x", pattern)
            dots = tuple(place for place, char in enumerate(bare) if char == ".")
            self._by_length.setdefault(len(bare), {}).setdefault(dots, set()).add(_ESCAPED.sub(r"\1", pattern))

    def has(self, user: str) -> bool:
        for dots, ids in self._by_length.get(len(user), {}).items():
            characters = list(user)
            for place in dots:
                if characters[place] != "\n":  # a dot does not match it
                    characters[place] = "."
            if "".join(characters) in ids:
                return True
        return False


# A file's patterns are checked first and used later; the cache avoids parsing them twice.
@functools.lru_cache(maxsize=4096)
def _matcher(pattern: str) -> Matcher:
    try:
        return Matcher(pattern)
    except NotMatchable as error:
        raise UnsafePattern(f"{pattern!r}: {error}") from error
