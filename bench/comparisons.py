"""Count how often comparisons of benchmarks are wrong: `python bench/comparisons.py [--families=1000]`.

Each family is a comparison of eight cells. The noise has standard deviations of 5 % between places, 2 % between jobs
and 1 % between iterations; both sides have the same mix of places, each place the same luck on both sides. Verdicts:

    no gate      the same code, and any difference counts as a claim: 5 % of families may have a false alarm
    same code    the same code, with the gate
    at the gate  every cell is slower (or faster) by exactly the gate, the worst case: any claim is false
    one slower   one cell is slower by 10 %: how often it is found, and how often anything else is claimed of another
    elsewhere    the same code in different places: "cannot tell" is the only right verdict
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bastion.benchmark.comparison import Comparison, Verdict, compare

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.simulated_benchmarks import SHAPES, luck, matrix_of, simulated

CELLS = [f"c{number}" for number in range(8)]
SLOWDOWN = 1.10


def family(
    draw: random.Random,
    *,
    places: int,
    repeats: int,
    gate: float,
    factors: Mapping[str, float] | None = None,
    elsewhere: bool = False,
    shape: str = "normal",
) -> Comparison:
    """One comparison of eight cells; `factors`: what the candidate is slower by."""
    there = luck(draw, places)
    baseline = simulated(draw, matrix_of(CELLS, repeats), there, shape=shape)
    if elsewhere:
        there = luck(draw, places, "zone/other")
    candidate = simulated(draw, matrix_of(CELLS, repeats, run="B"), there, factors=factors, shape=shape)
    return compare(baseline, candidate, gate=gate)


def verdicts(found: Comparison) -> dict[str, Verdict]:
    return {each.cell: each.verdict for each in found.cells}


def report(families: int, seed: int, places: int, repeats: int, gate: float, shape: str) -> None:
    draw = random.Random(seed)

    def many(**terms: object) -> list[dict[str, Verdict]]:
        terms = {"gate": gate, "shape": shape, **terms}
        return [verdicts(family(draw, places=places, repeats=repeats, **terms)) for _ in range(families)]  # type: ignore[arg-type]

    def share(count: int) -> str:
        return f"{count / families:.1%}"

    claims = (Verdict.FASTER, Verdict.SLOWER)
    print(f"{repeats} repeats in {places} places")
    found = many(gate=0.0)
    print(f"  no gate:     a false alarm in {share(sum(any(v in claims for v in each.values()) for each in found))}")
    found = many()
    cells = Counter(verdict for each in found for verdict in each.values())
    told = ", ".join(f"{verdict.value} {number / (families * len(CELLS)):.1%}" for verdict, number in cells.items())
    alarms = sum(any(v in claims for v in each.values()) for each in found)
    print(f"  same code:   a false alarm in {share(alarms)}; {told}")
    for factor in (1 + gate, 1 - gate):
        found = many(factors=dict.fromkeys(CELLS, factor))
        wrong = sum(any(v is not Verdict.CANNOT_TELL for v in each.values()) for each in found)
        print(f"  at the gate: a false claim in {share(wrong)} (every cell x {factor:g})")
    found = many(factors={"c3": SLOWDOWN})
    hits = sum(each["c3"] is Verdict.SLOWER for each in found)
    wrong = sum(any(v in claims for cell, v in each.items() if cell != "c3") for each in found)
    missed = sum(each["c3"] in (Verdict.SAME, Verdict.FASTER) for each in found)
    print(f"  one slower:  found in {share(hits)}, called the same in {share(missed)}; false alarms in {share(wrong)}")
    found = many(elsewhere=True)
    print(f"  elsewhere:   cannot tell in {share(sum(set(each.values()) == {Verdict.CANNOT_TELL} for each in found))}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--families", type=int, default=1000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--gate", type=float, default=0.05)
    arguments.add_argument("--repeats", type=int, nargs="*", default=[10, 5])
    arguments.add_argument("--places", type=int, nargs="*", default=[1, 2, 5, 10])
    arguments.add_argument("--shape", choices=list(SHAPES), default="normal")
    given = arguments.parse_args()
    began = time.monotonic()
    for repeats in given.repeats:
        for places in given.places:
            if repeats % places == 0:
                report(given.families, given.seed, places, repeats, given.gate, given.shape)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
