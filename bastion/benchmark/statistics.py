"""The statistics of benchmarks: intervals of medians, differences within places, Holm's correction. Pure.

The unit is the job: the iterations of a job share its machine's luck, so each job is one number (ADR 59).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, median

# The probability that any claim of a comparison is false.
ALPHA = 0.05
# More degrees of freedom count as so many: a little wider than necessary, and never slow.
_FREEDOM_MAX = 400
# From this many jobs on, an interval of the median can hold the median in 95 % of cases.
INTERVAL_JOBS_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of the median. `coverage`: how often such intervals hold the true one; None for a single value."""

    low: float
    high: float
    coverage: float | None = 0.95


def median_interval(values: Sequence[float]) -> Interval:
    """Return the 95 % bootstrap interval of the median.

    The bootstrap's distribution is computed exactly, as if of infinitely many resamples, so it needs no seed. Its
    percentiles are Hesterberg's expanded ones ("What Teachers Should Know About the Bootstrap", 2015, section 5.2),
    because the plain ones are too narrow for few values. Of fewer than `INTERVAL_JOBS_MIN` values it is the range,
    which holds the median less often, as `coverage` says.
    """
    ordered, count = sorted(values), len(values)
    if count < INTERVAL_JOBS_MIN:
        coverage = None if count == 1 else 1 - 2.0 ** (1 - count)
        return Interval(low=ordered[0], high=ordered[-1], coverage=coverage)
    below = _expanded_tail(count)
    medians = sorted(((ordered[i] + ordered[j]) / 2, weight) for i, j, weight in _resampled_medians(count))
    return Interval(low=_percentile(medians, below), high=-_percentile([(-v, w) for v, w in medians[::-1]], below))


def _percentile(medians: Sequence[tuple[float, float]], below: float) -> float:
    reached = accumulate(weight for _, weight in medians)
    return next((value for (value, _), so_far in zip(medians, reached, strict=True) if so_far >= below), medians[-1][0])


@lru_cache(maxsize=64)
def _expanded_tail(count: int) -> float:
    """The part of the bootstrap's distribution to leave out at each end, instead of 2.5 %."""
    wide = math.sqrt(count / (count - 1)) * t_quantile(ALPHA, count - 1)
    return math.erfc(wide / math.sqrt(2)) / 2


@lru_cache(maxsize=64)
def _resampled_medians(count: int) -> tuple[tuple[int, int, float], ...]:
    """Which two ordered values are in the middle of a resample, from 0, and how probable that is."""
    half = (count + 1) // 2
    # at[i]: the probability that the (lower) middle value is at most the i-th smallest
    at = [
        math.fsum(
            math.comb(count, k) * (i / count) ** k * (1 - i / count) ** (count - k) for k in range(half, count + 1)
        )
        for i in range(count + 1)
    ]
    found = []
    for i in range(count):
        apart = 0.0
        if count % 2 == 0:
            low = ((i + 1) / count) ** half - (i / count) ** half
            for j in range(i + 1, count):
                weight = (
                    math.comb(count, half) * low * (((count - j) / count) ** half - ((count - j - 1) / count) ** half)
                )
                found.append((i, j, weight))
                apart += weight
        found.append((i, i, max(0.0, at[i + 1] - at[i] - apart)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much larger the second side's values are, each compared with the first's of the same place.

    Attributes:
        mean: Mean difference.
        of_medians: Difference of the medians in a place, averaged over places.
        error: Standard error of `mean`.
        deviation: Standard deviation of a value within its place and side.
        freedom: Degrees of freedom of `error`.
        places: Places that have values on both sides.
    """

    mean: float
    of_medians: float
    error: float
    deviation: float
    freedom: int
    places: int


def difference(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Difference | None:
    """Return the difference of two sides, whose values are given by place, by least squares with the place as a block.

    Places with values on one side only are left out. None if nothing is left to measure the noise with.
    """
    blocks = [(first[place], second[place]) for place in sorted(first) if first[place] and second.get(place)]
    freedom = sum(len(a) + len(b) - 1 for a, b in blocks) - 1
    if not blocks or freedom < 1:
        return None
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in blocks]
    total = math.fsum(weights)

    def average(each: Sequence[float]) -> float:
        return math.fsum(weight * value for weight, value in zip(weights, each, strict=True)) / total

    shift = average([fmean(b) - fmean(a) for a, b in blocks])
    squares = 0.0
    for a, b in blocks:
        aligned = [*a, *(value - shift for value in b)]
        middle = fmean(aligned)
        squares += math.fsum((value - middle) ** 2 for value in aligned)
    deviation = math.sqrt(squares / freedom)
    return Difference(
        mean=shift,
        of_medians=average([median(b) - median(a) for a, b in blocks]),
        error=deviation / math.sqrt(total),
        deviation=deviation,
        freedom=freedom,
        places=len(blocks),
    )


def holm(probabilities: Sequence[float], alpha: float = ALPHA) -> list[tuple[bool, float]]:
    """Return for each hypothesis whether Holm's step-down procedure rejects it, and at which level it was tested.

    After the first one that is not rejected, the others are tested at that one's level and are not rejected.
    """
    order = sorted(range(len(probabilities)), key=lambda index: probabilities[index])
    answers = [(False, alpha)] * len(order)
    level, going = alpha, True
    for step, index in enumerate(order):
        level = alpha / (len(order) - step) if going else level
        going = going and probabilities[index] <= level
        answers[index] = (going, level)
    return answers


def t_two_sided(t: float, freedom: int) -> float:
    """Return the probability that Student's t is at least so far from 0, by the finite series for whole degrees.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    if math.isinf(t):
        return 0.0
    freedom = min(freedom, _FREEDOM_MAX)
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term, series = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        series += term
        term *= cosine * cosine * k / (k + 1)
    inside = math.sin(angle) * series
    return max(0.0, 1.0 - ((angle + inside) * 2 / math.pi if odd else inside))


@lru_cache(maxsize=4096)
def t_quantile(two_sided: float, freedom: int) -> float:
    """Return the t that Student's t exceeds, on either side, with that probability."""
    if freedom > _FREEDOM_MAX:
        return t_quantile(two_sided, _FREEDOM_MAX)
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > two_sided and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_two_sided(middle, freedom) > two_sided else (low, middle)
    return high
