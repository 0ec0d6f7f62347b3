"""Which loans together cover a need with the least surplus, where a greedy choice gets stuck.

Sums are the bits of an integer, so a thousand loans of a thousand units take a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def covering(borrowers: Sequence[tuple[int, Sequence[int]]], need: int) -> list[tuple[int, int]] | None:
    """Indices of borrower and loan that cover `need` (above 0) with the least surplus; None if no loans cover it.

    `borrowers`: for each the most units to take from it, and the units of its loans, those to take first in front. The
    last borrower gives as much as possible.
    """
    reachable = [_sums(limit, loans) for limit, loans in borrowers]
    together = [1]
    for sums in reachable:
        together.append(_all_pairs(together[-1], sums[-1]))
    left = next((total for total in _bits(together[-1]) if total >= need), None)
    if left is None:
        return None
    found = []
    for borrower in reversed(range(len(borrowers))):
        sums, others = reachable[borrower], together[borrower]
        part = max(part for part in _bits(sums[-1]) if part <= left and others >> (left - part) & 1)
        left -= part
        for loan in reversed(range(len(sums) - 1)):
            if not sums[loan] >> part & 1:
                part -= borrowers[borrower][1][loan]
                found.append((borrower, loan))
    return found[::-1]


def _sums(limit: int, loans: Sequence[int]) -> list[int]:
    """The sums up to `limit` of the first 0, 1, 2, ... loans, as bits."""
    mask = (1 << (limit + 1)) - 1
    sums = [1]
    for units in loans:
        sums.append((sums[-1] | sums[-1] << units) & mask)
    return sums


def _all_pairs(some: int, others: int) -> int:
    pairs = 0
    for part in _bits(others):
        pairs |= some << part
    return pairs


def _bits(number: int) -> Iterator[int]:
    """Positions of the bits that are set, lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
