"""Loans that cover a need are found whenever there are any, and no more of them than it takes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scheduler.decide.loans import covering

UNITS = st.lists(st.integers(1, 9), max_size=4)
BORROWERS = st.lists(st.tuples(st.integers(0, 20), UNITS), max_size=3)


def possible_totals(borrowers: list[tuple[int, list[int]]]) -> set[int]:
    """By trying everything."""
    sums = [
        {sum(some) for size in range(len(units) + 1) for some in itertools.combinations(units, size)}
        for _, units in borrowers
    ]
    within = [{total for total in of if total <= limit} for of, (limit, _) in zip(sums, borrowers, strict=True)]
    return {sum(parts) for parts in itertools.product(*within)}


@given(BORROWERS, st.integers(1, 40))
def test_the_least_total_that_covers_the_need_is_found(borrowers: list[tuple[int, list[int]]], need: int) -> None:
    enough = {total for total in possible_totals(borrowers) if total >= need}
    found = covering(borrowers, need)
    if not enough:
        assert found is None
        return
    assert found is not None and len(set(found)) == len(found)
    taken = [
        [borrowers[place][1][loan] for place, loan in found if place == wanted] for wanted in range(len(borrowers))
    ]
    assert sum(map(sum, taken)) == min(enough)
    assert all(sum(of) <= limit for of, (limit, _) in zip(taken, borrowers, strict=True))


def test_of_equal_loans_the_ones_in_front_are_called_back() -> None:
    assert covering([(30, [8, 8, 8, 8])], 16) == [(0, 0), (0, 1)]


def test_the_last_borrower_gives_most() -> None:
    assert covering([(16, [8, 8]), (16, [8, 8])], 16) == [(1, 0), (1, 1)]
