"""Which regular expressions may name a project's members.

Layer: `quota`, pure. The daemon matches every user against every pattern, and Python's `re` backtracks: `(a+)+b` takes
longer than the universe has existed on a user id that everybody may choose. So a pattern is taken apart before its
first use, and refused if the number of ways in which it could match a user id has no small bound.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from quota.policy import USER_ID_MAX_CHARS

PATTERN_MAX_CHARS = 256
# Three open repetitions (`.*a.*b.*`) on the longest user id: at most some milliseconds.
_WAYS_MAX = 2 * (USER_ID_MAX_CHARS + 1) ** 3

# Python 3.10 has the parser under its old name, which later versions warn about.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_ONE_WAY = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "RANGE", "AT", "FAILURE"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class UnsafePattern(ValueError):
    """The pattern is no regular expression, or could take too long; the message says what to change."""


def check_pattern(pattern: str) -> None:
    """Refuses what is not a regular expression, and what could take long to match.

    Raises:
        UnsafePattern: with what to change.
    """
    if not pattern:
        raise UnsafePattern("the pattern is empty and matches nobody; write a user id or delete it")
    if len(pattern) > PATTERN_MAX_CHARS:
        raise UnsafePattern(
            f"the pattern has {len(pattern)} characters, {PATTERN_MAX_CHARS} are the most; "
            "split it into several patterns"
        )
    try:
        tree = _parser.parse(pattern)
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsafePattern(
            f"{pattern!r} is not a regular expression ({error}); escape special characters with a backslash"
        ) from error
    if _ways(tree, pattern) > _WAYS_MAX:
        raise UnsafePattern(
            f"{pattern!r} has too many repetitions and could take very long to match; use at most three of * + ?"
        )


def _ways(sequence: Any, pattern: str) -> int:
    """An upper bound for the ways in which a sequence of parsed items can match one user id."""
    ways = 1
    for operation, argument in sequence:
        ways *= _ways_of_item(str(operation), argument, pattern)
        if ways > _WAYS_MAX:
            return ways
    return ways


def _ways_of_item(operation: str, argument: Any, pattern: str) -> int:
    if operation in _ONE_WAY:
        return 1
    if operation in _REPEATS:
        least, most, body = argument
        body_ways = _ways(body, pattern)
        if int(most) > 1 and body_ways > 1:
            raise UnsafePattern(
                f"{pattern!r} repeats a part that itself repeats or has alternatives, like (a+)+, and could take "
                "very long to match; write it without the inner one"
            )
        # Zero or one times something that matches in several ways: those ways, or none.
        return max(body_ways, 1) + 1 if int(most) <= 1 else min(int(most) - int(least), USER_ID_MAX_CHARS) + 1
    if operation == "SUBPATTERN":
        return _ways(argument[3], pattern)
    if operation == "ATOMIC_GROUP":
        return _ways(argument, pattern)
    if operation == "BRANCH":
        return sum(_ways(branch, pattern) for branch in argument[1])
    if operation in ("ASSERT", "ASSERT_NOT"):
        return _ways(argument[1], pattern)
    raise UnsafePattern(f"{pattern!r} refers back to a group, which quota files do not support; write it out")
