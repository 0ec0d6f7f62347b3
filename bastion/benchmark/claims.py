"""What can be claimed of a ratio: that it is beyond the gate, or within it. Pure."""

from __future__ import annotations

import math
from enum import Enum

from bastion.benchmark.statistics import Difference, t_two_sided


class Range(Enum):
    """Where a ratio is, of the range from 1 - gate to 1 + gate."""

    BELOW = "below"
    WITHIN = "within"
    ABOVE = "above"


def range_of(logarithm: float, gate: float) -> Range:
    """Return where a ratio with that logarithm is."""
    if logarithm < math.log1p(-gate):
        return Range.BELOW
    return Range.ABOVE if logarithm > math.log1p(gate) else Range.WITHIN


def claim(found: Difference, gate: float) -> tuple[Range, float]:
    """Return the most certain claim about the ratio, and the two-sided probability of such values if it is false."""
    low, high = math.log1p(-gate), math.log1p(gate)
    distances = {
        Range.BELOW: low - found.mean,
        Range.WITHIN: min(high - found.mean, found.mean - low),
        Range.ABOVE: found.mean - high,
    }
    claimed = max(distances, key=lambda each: distances[each])
    distance = distances[claimed]
    if distance <= 0:
        return claimed, 1.0
    # Values without any noise, such as counts, differ certainly or not at all.
    return claimed, t_two_sided(distance / found.error if found.error else math.inf, found.freedom)
