"""Matches user ids against the patterns of a quota file, in linear time: RE2, which never backtracks."""

from __future__ import annotations

import re

import re2

TEXT_MAX_CHARS = 128
# The largest program of one pattern, in instructions of RE2: the longest id takes a few milliseconds at most.
COST_MAX = 2_000
# In Python's syntax this is a repetition up to n; RE2 reads it as plain text.
_OPEN_REPEAT = re.compile(r"(?<!\\)(?:\\\\)*\{,")

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 1024 * 1024


class NotMatchable(ValueError):
    """The text is not a regular expression that can be matched in linear time."""


class Matcher:
    r"""One pattern, in the syntax that Python's `re` and RE2 share; `\d`, `\w`, `\s` and `\b` mean ASCII.

    `cost`: instructions of its program.
    """

    __slots__ = ("_pattern", "cost")

    def __init__(self, pattern: str) -> None:
        """Raises NotMatchable if the pattern is invalid, not supported, or too expensive."""
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise NotMatchable(
                f"it is not a valid regular expression ({error}); escape special characters with \\"
            ) from None
        if _OPEN_REPEAT.search(pattern):
            raise NotMatchable("it has a repetition {,n}; write {0,n}")
        try:
            self._pattern = re2.compile(pattern, _OPTIONS)
        except (re2.error, UnicodeEncodeError) as error:
            raise NotMatchable(
                f"it cannot be matched in linear time ({_reason(error)}): look-arounds, references to groups, and "
                "possessive or very long repetitions are not supported; use a simpler pattern, or plain user ids"
            ) from error
        self.cost: int = self._pattern.programsize
        if self.cost > COST_MAX:
            raise NotMatchable(
                f"it compiles to {self.cost} instructions; the maximum is {COST_MAX}; shorten its repetitions, or "
                "split it into several patterns"
            )

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. A text that is not valid Unicode never does."""
        try:
            return self._pattern.fullmatch(text) is not None
        except UnicodeEncodeError:
            return False


def _reason(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else "it is not valid Unicode"
