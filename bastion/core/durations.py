"""Durations as people write them: `90s`, `45m`, `2h`, `3d`."""

from __future__ import annotations

import re

_FORM = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration; None if the text has another form."""
    found = _FORM.fullmatch(text)
    return None if found is None else float(found[1]) * _SECONDS[found[2]]
