"""Intervals, differences within places, Holm's correction, Student's t: against known values and brute force."""

from __future__ import annotations

import itertools
import math
import random
import statistics as library
from collections import Counter

import pytest

from bastion.benchmark.statistics import (
    _resampled_medians,
    difference,
    holm,
    median_interval,
    t_quantile,
    t_two_sided,
)


# Printed tables of Student's t, two-sided.
@pytest.mark.parametrize(
    ("freedom", "probability", "t"),
    [
        (1, 0.05, 12.7062),
        (2, 0.05, 4.3027),
        (5, 0.01, 4.0321),
        (9, 0.05, 2.2622),
        (14, 0.001, 4.1405),
        (18, 0.05, 2.1009),
        (30, 0.01, 2.7500),
        (400, 0.05, 1.9659),
        (100_000, 0.05, 1.9659),
    ],
)
def test_students_t_is_that_of_the_tables(freedom: int, probability: float, t: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(t, abs=5e-5)
    assert t_two_sided(t, freedom) == pytest.approx(probability, rel=1e-3)


def test_students_t_at_its_ends() -> None:
    assert t_two_sided(0.0, 7) == 1.0
    assert t_two_sided(math.inf, 7) == 0.0
    assert t_two_sided(1e9, 7) < 1e-12


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_the_bootstrap_has_the_distribution_of_all_resamples(count: int) -> None:
    values = [float(2**number) for number in range(count)]
    resamples = Counter(library.median(each) for each in itertools.product(values, repeat=count))
    found: Counter[float] = Counter()
    for i, j, weight in _resampled_medians(count):
        found[(values[i] + values[j]) / 2] += weight
    for value, times in resamples.items():
        assert found[value] == pytest.approx(times / count**count)
    assert found.total() == pytest.approx(1.0)


def test_the_interval_of_few_jobs_is_their_range_and_says_how_often_it_holds() -> None:
    found = median_interval([3.0, 1.0, 2.0])
    assert (found.low, found.high, found.coverage) == (1.0, 3.0, 0.75)
    assert median_interval([7.0]).coverage is None


@pytest.mark.parametrize("count", [6, 7, 10, 20])
def test_an_interval_holds_the_median_nearly_as_often_as_it_claims(count: int) -> None:
    draw = random.Random(count)
    held = 0
    for _ in range(1000):
        found = median_interval([draw.gauss(0, 1) for _ in range(count)])
        held += found.low <= 0 <= found.high
    assert held >= 930


def test_the_interval_does_not_depend_on_the_order_of_the_jobs() -> None:
    values = [random.Random(1).gauss(10, 1) for _ in range(10)]
    assert median_interval(values) == median_interval(values[::-1])


def test_holm_rejects_step_by_step() -> None:
    # 0.01 <= 0.05 / 4, 0.013 <= 0.05 / 3, 0.03 > 0.05 / 2: the third stops, and the fourth is not tried.
    found = holm([0.03, 0.01, 0.04, 0.013])
    assert [rejected for rejected, _ in found] == [False, True, False, True]
    assert [level for _, level in found] == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])
    assert holm([]) == []
    assert holm([0.05]) == [(True, 0.05)]


def test_the_difference_within_places_does_not_see_the_places() -> None:
    luck = {"a": 5.0, "b": -3.0}
    first = {place: [level, level + 0.1] for place, level in luck.items()}
    second = {place: [level + 1.0, level + 1.1] for place, level in luck.items()}
    found = difference(first, second)
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert found.of_medians == pytest.approx(1.0)
    assert found.freedom == 8 - 2 - 1
    assert found.places == 2
    # Each of the eight values is 0.05 from the middle of its place and side.
    assert found.deviation == pytest.approx(math.sqrt(8 * 0.05**2 / 5))
    assert found.error == pytest.approx(found.deviation * math.sqrt(1 / 2))


def test_one_place_is_the_test_of_two_samples() -> None:
    first, second = [1.0, 1.2, 0.9, 1.1], [1.4, 1.3, 1.6]
    found = difference({"": first}, {"": second})
    assert found is not None
    pooled = math.sqrt((3 * library.variance(first) + 2 * library.variance(second)) / 5)
    assert found.error == pytest.approx(pooled * math.sqrt(1 / 4 + 1 / 3))
    assert found.mean == pytest.approx(library.mean(second) - library.mean(first))


def test_places_of_one_job_each_are_the_test_of_pairs() -> None:
    draw = random.Random(1)
    first = {str(place): [draw.gauss(0, 1)] for place in range(6)}
    second = {str(place): [draw.gauss(0, 1)] for place in range(6)}
    pairs = [second[place][0] - first[place][0] for place in first]
    found = difference(first, second)
    assert found is not None
    assert found.freedom == 5
    assert found.error == pytest.approx(library.stdev(pairs) / math.sqrt(6))


def test_a_place_of_one_side_only_counts_for_nothing() -> None:
    both = difference({"a": [1.0, 1.1]}, {"a": [1.2, 1.3]})
    assert difference({"a": [1.0, 1.1], "b": [9.0]}, {"a": [1.2, 1.3], "c": [5.0]}) == both
    assert difference({"a": [1.0]}, {"b": [1.0]}) is None
    assert difference({"a": [1.0]}, {"a": [1.1]}) is None  # nothing to measure the noise with
