"""Helpers for messages about a quota file: shortened values, and "did you mean ...?"."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# Comparing two words takes tens of microseconds, and more for longer ones.
_WORD_MAX_CHARS = 128
_COMPARISONS_MAX = 20_000


def shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Guesses:
    """Suggests known words for unknown ones, with a bounded total number of comparisons."""

    def __init__(self) -> None:
        self._comparisons_left = _COMPARISONS_MAX

    def meant(self, word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
        if len(word) > _WORD_MAX_CHARS or len(known) > self._comparisons_left:
            return None
        self._comparisons_left -= len(known)
        near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
        return near[0] if near else None

    def question(self, word: str, known: Sequence[str]) -> str:
        """Return a suffix for a message, `; did you mean ...?`; empty if no known word is close."""
        near = self.meant(word, known)
        return f"; did you mean {near}?" if near is not None else ""
