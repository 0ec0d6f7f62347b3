"""How problems of a quota file are worded: values cut to a readable length, and what was probably meant.

Layer: lowest, pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# To compare two words takes some tens of microseconds, and more the longer they are.
_WORD_MAX_CHARS = 128
_COMPARISONS_MAX = 20_000


def shown(value: object) -> str:
    """The value as it would be written, cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Guesses:
    """What unknown words were probably meant to be. A file of a thousand unknown names gets no guesses for the last."""

    def __init__(self) -> None:
        self._comparisons_left = _COMPARISONS_MAX

    def meant(self, word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
        """The known word that is closest; None if none is close."""
        if len(word) > _WORD_MAX_CHARS or len(known) > self._comparisons_left:
            return None
        self._comparisons_left -= len(known)
        near = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
        return near[0] if near else None

    def question(self, word: str, known: Sequence[str]) -> str:
        """Something to end a problem with; empty if nothing known is close."""
        near = self.meant(word, known)
        return f"; did you mean {near}?" if near is not None else ""
