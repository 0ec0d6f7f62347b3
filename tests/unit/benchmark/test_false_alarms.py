"""How often comparisons are wrong, on runs whose noise is known; `bench/comparisons.py` counts more of them.

Standard deviations: place 5 %, job 2 %, iteration 1 %; eight cells, ten repeats, the same mix of places on both sides.
The limits allow for the sampling error of so few families.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from bastion.benchmark.comparison import Verdict, compare
from bastion.benchmark.noise import held_gate, noise, repeats_needed
from tests.support.simulated_benchmarks import luck, matrix_of, simulated

CELLS = [f"c{number}" for number in range(8)]
FAMILIES = 120
CLAIMS = {Verdict.FASTER, Verdict.SLOWER}


def families(
    places: int,
    *,
    gate: float = 0.05,
    repeats: int = 10,
    factors: Mapping[str, float] | None = None,
    elsewhere: str = "",
    number: int = FAMILIES,
) -> Iterator[dict[str, Verdict]]:
    draw = random.Random(places)
    matrices = [matrix_of(CELLS, repeats, run=run) for run in "AB"]
    for _ in range(number):
        there = luck(draw, places)
        baseline = simulated(draw, matrices[0], there)
        candidate = simulated(draw, matrices[1], luck(draw, places, elsewhere) if elsewhere else there, factors=factors)
        yield {each.cell: each.verdict for each in compare(baseline, candidate, gate=gate).cells}


@pytest.mark.parametrize("places", [1, 5, 10])
def test_the_same_code_differs_in_one_family_of_twenty(places: int) -> None:
    alarms = sum(bool(CLAIMS & set(each.values())) for each in families(places, gate=0.0))
    assert alarms <= 12  # 6 expected


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_even_at_the_gate_one_family_of_twenty_has_a_false_claim(factor: float) -> None:
    found = families(5, factors=dict.fromkeys(CELLS, factor))
    assert sum(set(each.values()) != {Verdict.CANNOT_TELL} for each in found) <= 12


@pytest.mark.parametrize("places", [2, 10])
def test_a_slowdown_of_ten_percent_is_found_and_nothing_else(places: int) -> None:
    found = list(families(places, factors={"c3": 1.1}))
    assert sum(each["c3"] is Verdict.SLOWER for each in found) >= 0.95 * FAMILIES
    assert sum(bool(CLAIMS & {verdict for cell, verdict in each.items() if cell != "c3"}) for each in found) <= 1


def test_sides_in_different_places_cannot_be_told() -> None:
    for each in families(2, elsewhere="zone/other", number=30):
        assert set(each.values()) == {Verdict.CANNOT_TELL}


def test_the_gate_that_a_run_holds_is_held() -> None:
    gate = held_gate(0.0205, repeats=10, places=5, claims=8)
    assert gate is not None
    assert 0.04 < gate < 0.05
    found = list(families(5, gate=gate, number=60))
    assert sum(verdict is Verdict.SAME for each in found for verdict in each.values()) >= 0.9 * 60 * 8
    found = list(families(5, gate=gate, factors={"c3": 1 + 2 * gate}, number=60))
    assert sum(each["c3"] is Verdict.SLOWER for each in found) >= 0.9 * 60


def test_the_repeats_for_a_finer_gate_hold_it() -> None:
    needed = repeats_needed(0.0205, gate=0.03, places=1, claims=8)
    assert needed is not None
    assert 15 < needed < 25
    found = list(families(1, gate=0.03, repeats=needed, number=30))
    assert sum(verdict is Verdict.SAME for each in found for verdict in each.values()) >= 0.9 * 30 * 8


def test_the_noise_of_a_run_is_the_simulated_one() -> None:
    draw = random.Random(4)
    found = noise(simulated(draw, matrix_of(CELLS, 10), luck(draw, 5)))
    for each in found:
        assert each.assumed == pytest.approx(0.0205, rel=0.3)
        assert each.places == 5
