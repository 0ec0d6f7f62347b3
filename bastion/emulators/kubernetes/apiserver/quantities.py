"""Quantities such as `4`, `500m` and `16Gi`: apimachinery pkg/api/resource."""

from __future__ import annotations

import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse(text: object) -> Fraction:
    """Raises ValueError."""
    found = _FORM.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a valid quantity")
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    if suffix in _DECIMAL:
        return number * _ten_to(_DECIMAL[suffix])
    return number * _ten_to(int(suffix[1:]))


def _ten_to(power: int) -> Fraction:
    return Fraction(10**power) if power >= 0 else Fraction(1, 10**-power)
