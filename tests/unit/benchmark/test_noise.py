"""The noise of a run, and the gate that follows from it."""

from __future__ import annotations

import math

import pytest

from bastion.benchmark.layout import CellResult
from bastion.benchmark.noise import Noise, held_gate, noise, repeats_needed
from tests.support.simulated_benchmarks import matrix_of, result_of, run_of


def noise_of(*values: float, places: tuple[str, ...] = ("zone/a",)) -> Noise:
    results: list[CellResult | str] = [
        result_of("c", number + 1, value, place=places[number % len(places)]) for number, value in enumerate(values)
    ]
    (found,) = noise(run_of(matrix_of(["c"], len(values)), results))
    return found


def test_noise_is_what_differs_within_a_place() -> None:
    step = math.exp(0.02)
    found = noise_of(1.0, 2.0, step, 2 * step, places=("zone/a", "zone/b"))
    assert found.places == 2
    assert found.deviation == pytest.approx(math.sqrt(4 * 0.01**2 / 2))


def test_with_a_place_for_each_job_the_places_are_noise() -> None:
    found = noise_of(1.0, 2.0, places=("zone/a", "zone/b"))
    assert found.places == 1
    assert found.deviation == pytest.approx(math.log(2) / math.sqrt(2))


def test_noise_of_one_job_or_of_no_ratio_is_unknown() -> None:
    assert noise_of(1.0).why_unknown == "1 job with a value; at least 2 are required"
    assert noise_of(1.0, -1.0).why_unknown == "a value is -1; ratios require values above 0"
    (found,) = noise(run_of(matrix_of(["c"], 1), ["gone"]))
    assert (found.holds, found.why_unknown) == (None, "no jobs with a value; at least 2 are required")


def test_a_cell_that_is_much_noisier_has_its_own_noise() -> None:
    quiet, loud = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99), (1.0, 1.3, 0.7, 1.0, 1.3, 0.7)
    cells = ["a", "b", "c", "d"]
    results: list[CellResult | str] = [
        result_of(cell, number + 1, value)
        for cell in cells
        for number, value in enumerate(loud if cell == "d" else quiet)
    ]
    found = noise(run_of(matrix_of(cells, 6), results))
    assert found[0].assumed == found[1].assumed
    assert found[0].assumed == pytest.approx(found[0].deviation or 0, rel=0.1)
    assert found[3].assumed == found[3].deviation


def test_more_repeats_hold_a_finer_gate() -> None:
    gates = [held_gate(0.02, repeats=repeats, places=1, claims=8) for repeats in (3, 5, 10, 40)]
    assert None not in gates
    assert gates == sorted(gates, key=lambda gate: -(gate or 0))


@pytest.mark.parametrize(("gate", "places"), [(0.05, 1), (0.02, 1), (0.02, 10), (0.001, 1)])
def test_the_repeats_that_are_needed_are_the_fewest(gate: float, places: int) -> None:
    needed = repeats_needed(0.02, gate=gate, places=places, claims=8)
    if needed is None:
        assert gate == 0.001
        return
    enough = held_gate(0.02, repeats=needed, places=places, claims=8)
    assert enough is not None
    assert enough <= gate
    fewer = held_gate(0.02, repeats=needed - 1, places=places, claims=8)
    assert fewer is None or fewer > gate


def test_noise_beyond_all_numbers_holds_no_gate() -> None:
    """A hundred cells, two repeats, each in a place of its own: Student's t is above a thousand."""
    assert held_gate(0.7, repeats=2, places=2, claims=100) is None


def test_two_repeats_in_two_places_hold_nothing_and_no_noise_holds_everything() -> None:
    assert held_gate(0.02, repeats=1, places=1, claims=1) is None
    assert held_gate(2.0, repeats=2, places=1, claims=8) is None
    assert held_gate(0.0, repeats=2, places=1, claims=8) == 0.0
    assert repeats_needed(0.0, gate=0.01, places=1, claims=8) == 2
