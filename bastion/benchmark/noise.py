"""What gate a benchmark can hold, by the noise of one run and its repeats. Pure.

To hold a gate means: of two runs of the same code, each cell is told to be the same in 90 % of cases, and a change of
twice the gate is told in 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from bastion.benchmark.measurements import CellMeasurements, RunMeasurements
from bastion.benchmark.statistics import ALPHA, t_quantile
from bastion.core.plurals import count

# Chance that an interval is too far to one side for the verdict "the same", which has two.
_MISSED_ONE_SIDE = 0.05
REPEATS_MAX = 10_000


# Standard errors by which a cell's variance exceeds that of all cells before its own is believed.
_OWN_FROM = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The noise of a metric in a cell.

    Attributes:
        deviation: Standard deviation between jobs in one place, as a part of the value; None if it is unknown.
        assumed: What `holds` follows from: the noise of all cells, or the cell's own if that is clearly larger. Ten
            jobs know their noise to a quarter only.
        places: Places of the jobs; 1 if they are unknown, or if each job had its own: then they are in `deviation`.
        holds: The finest gate that so many jobs on each side can hold; None if there is none.
        repeats_for_gate: None if it takes more than `REPEATS_MAX`, or the noise is unknown.
        why_unknown: Empty if `deviation` is known.
    """

    cell: str
    metric: str
    jobs: int
    gate: float
    deviation: float | None = None
    assumed: float | None = None
    places: int = 1
    holds: float | None = None
    repeats_for_gate: int | None = None
    why_unknown: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """A sum of squares of logarithms; `freedom` is its number of independent squares."""

    squares: float
    freedom: int
    places: int

    @property
    def variance(self) -> float:
        return self.squares / self.freedom


def noise(run: RunMeasurements, gate: float | None = None) -> list[Noise]:
    """Return the noise of each cell and metric; `gate` replaces the gates of the run's metrics."""
    claims = len(run.cells) * len(run.matrix.metrics)
    measured = {(cell.cell, name): _measure(cell, name) for cell in run.cells for name in run.matrix.metrics}
    shared = {
        name: _shared([each for (_, of), each in measured.items() if of == name and isinstance(each, _Measured)])
        for name in run.matrix.metrics
    }
    found = []
    for cell in run.cells:
        for name, metric in run.matrix.metrics.items():
            each, jobs = measured[cell.cell, name], len(cell.with_metric(name))
            wanted = metric.gate if gate is None else gate
            if isinstance(each, str):
                found.append(Noise(cell=cell.cell, metric=name, jobs=jobs, gate=wanted, why_unknown=each))
                continue
            own = each.variance > shared[name] * (1 + _OWN_FROM * math.sqrt(2 / each.freedom))
            assumed = math.sqrt(each.variance if own else shared[name])
            found.append(
                Noise(
                    cell=cell.cell,
                    metric=name,
                    jobs=jobs,
                    gate=wanted,
                    deviation=math.sqrt(each.variance),
                    assumed=assumed,
                    places=each.places,
                    holds=held_gate(assumed, repeats=jobs, places=each.places, claims=claims),
                    repeats_for_gate=repeats_needed(assumed, gate=wanted, places=each.places, claims=claims),
                )
            )
    return found


def _measure(cell: CellMeasurements, metric: str) -> _Measured | str:
    """Return the noise within places, or why it is unknown.

    If each job has a place of its own, they count as one place: the noise cannot be told from the places.
    """
    jobs = cell.with_metric(metric)
    values = [job.values[metric] for job in jobs]
    if len(values) < 2:
        return f"{count(len(values) or 'no', 'job')} with a value; at least 2 are required"
    if min(values) <= 0:
        return f"a value is {min(values):g}; ratios require values above 0"
    groups: dict[str, list[float]] = {}
    for job, value in zip(jobs, values, strict=True):
        groups.setdefault(job.environment.place, []).append(math.log(value))
    if len(groups) == len(values):
        groups = {"": [math.log(value) for value in values]}
    squares = math.fsum((value - fmean(group)) ** 2 for group in groups.values() for value in group)
    return _Measured(squares=squares, freedom=len(values) - len(groups), places=len(groups))


def _shared(found: Sequence[_Measured]) -> float:
    """Return the variance that the cells have in common: the median of theirs, so that a noisy cell does not count.

    The median of a chi-squared variable is below its mean; the factor is Wilson and Hilferty's.
    """
    return median([each.variance / (1 - 2 / (9 * each.freedom)) ** 3 for each in found]) if found else 0.0


def held_gate(deviation: float, *, repeats: int, places: int, claims: int) -> float | None:
    """Return the finest gate that comparisons of so many repeats can hold; None if there is none."""
    reach = _reach(deviation, repeats, places, claims)
    return math.expm1(reach) if reach is not None and reach < math.log(2) else None


def repeats_needed(deviation: float, *, gate: float, places: int, claims: int) -> int | None:
    """Return the fewest repeats that hold the gate; None if they are more than `REPEATS_MAX`."""

    def holds(repeats: int) -> bool:
        held = held_gate(deviation, repeats=repeats, places=places, claims=claims)
        return held is not None and held <= gate

    low, high = 1, REPEATS_MAX
    if not holds(high):
        return None
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _reach(deviation: float, repeats: int, places: int, claims: int) -> float | None:
    """The logarithm of the ratio from which two sides are told apart, tested with Holm's strictest level."""
    freedom = 2 * repeats - min(places, repeats) - 1
    if freedom < 1:
        return None
    quantiles = t_quantile(ALPHA / claims, freedom) + t_quantile(2 * _MISSED_ONE_SIDE, freedom)
    return quantiles * deviation * math.sqrt(2 / repeats)
