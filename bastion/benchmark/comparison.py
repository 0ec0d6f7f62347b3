"""Two runs compared: for each cell and metric faster, slower, the same, or cannot tell. Pure.

The values are compared as logarithms, with the place as a block, so that a place's luck cancels. A verdict is a claim
about the ratio: beyond the gate, or within it on both sides. Each is tested with Student's t, and Holm's correction
makes all claims of a comparison true together in 95 % of cases (ADR 59).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from bastion.benchmark import environment_facts
from bastion.benchmark.claims import Range, claim, range_of
from bastion.benchmark.environment_facts import PLACE, EnvironmentDifference
from bastion.benchmark.layout import Better, Metric
from bastion.benchmark.measurements import CellMeasurements, JobMeasurement, RunMeasurements
from bastion.benchmark.noise import repeats_needed
from bastion.benchmark.statistics import Difference, difference, holm, t_quantile
from bastion.core.errors import Refused
from bastion.core.plurals import count

EXIT_SLOWER = 3
EXIT_CANNOT_TELL = 4
EXIT_MISSING = 5
_LOG_RATIO_MAX = math.log(1e6)
# More keys of facts than these are told as `libraries` and `variables`.
_KEYS_NAMED = 12


class Verdict(str, Enum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    CANNOT_TELL = "cannot tell"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    """A metric of a cell on both sides.

    Attributes:
        baseline: Median over jobs; None without a value. `candidate` likewise.
        ratio: Candidate by baseline: of the medians in each place, averaged over places. None if it is unknown.
        low: Lower end of the ratio's interval. All intervals of a comparison hold their ratios in 95 % of cases.
        why: What the verdict does not say: why it cannot be told, what is missing, how many jobs failed.
    """

    cell: str
    metric: str
    unit: str
    better: Better
    gate: float
    verdict: Verdict
    why: str = ""
    baseline: float | None = None
    candidate: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All cells and metrics of two runs. `allowed`: differences of the environments that were allowed."""

    baseline: str
    candidate: str
    cells: Sequence[CellComparison]
    allowed: Sequence[EnvironmentDifference] = ()

    @property
    def exit_code(self) -> int:
        found = {each.verdict for each in self.cells}
        if Verdict.SLOWER in found:
            return EXIT_SLOWER
        if Verdict.MISSING in found:
            return EXIT_MISSING
        return EXIT_CANNOT_TELL if Verdict.CANNOT_TELL in found else 0


class DifferentEnvironments(Refused):
    """The environments of two runs differ in what was not allowed to differ."""

    def __init__(self, found: Sequence[EnvironmentDifference]) -> None:
        keys = list(dict.fromkeys(each.key for each in found))
        if len(keys) > _KEYS_NAMED:  # `libraries` for all of them
            keys = list(dict.fromkeys(key.partition(".")[0] for key in keys))
        super().__init__(
            f"the environments of the runs differ in {', '.join(keys)}, so a difference may not be the code's; run one "
            f"of them again, or use {' '.join(f'--allow={key}' for key in keys)}"
        )
        self.differences = found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two sides that can be tested; `of`: the answer so far."""

    of: CellComparison
    difference: Difference


def compare(
    baseline: RunMeasurements,
    candidate: RunMeasurements,
    *,
    gate: float | None = None,
    allowed: Collection[str] = (),
) -> Comparison:
    """Compare two runs.

    Args:
        gate: Instead of the gates of the candidate's metrics; 0 asks whether there is any difference.
        allowed: Facts of the environment that may differ. With `place`, different places are compared as if they were
            one.

    Raises:
        Refused: The runs measure no common metric, or one of them in another unit or sense.
        DifferentEnvironments: Other facts of the environments differ.
    """
    environment_facts.check_keys(allowed)
    metrics = _metrics(baseline, candidate)
    first, second = ({cell.cell: cell for cell in run.cells} for run in (baseline, candidate))
    cells = list(dict.fromkeys([*first, *second]))
    found = environment_facts.differences(
        [(cell, _with_values(first.get(cell)), _with_values(second.get(cell))) for cell in cells]
    )
    refused = [each for each in found if not environment_facts.is_allowed(each.key, allowed)]
    if refused:
        raise DifferentEnvironments(refused)
    answers = [
        _prepare(first.get(cell), second.get(cell), cell, name, metric, metric.gate if gate is None else gate, allowed)
        for cell in cells
        for name, metric in metrics.items()
    ]
    tested = iter(_test([each for each in answers if isinstance(each, _Pair)]))
    return Comparison(
        baseline=baseline.title,
        candidate=candidate.title,
        cells=[next(tested) if isinstance(each, _Pair) else each for each in answers],
        allowed=found,
    )


def _metrics(baseline: RunMeasurements, candidate: RunMeasurements) -> Mapping[str, Metric]:
    first, second = baseline.matrix.metrics, candidate.matrix.metrics
    if not first.keys() & second.keys():
        raise Refused(
            f"{baseline.title} measures {', '.join(first)}, and {candidate.title} {', '.join(second)}; "
            "only runs with a common metric can be compared"
        )
    for name in [name for name in first if name in second]:
        for what, one, other in (
            ("the unit", first[name].unit, second[name].unit),
            ("better =", first[name].better.value, second[name].better.value),
        ):
            if one != other:
                raise Refused(
                    f"the metric {name} has {what} {one} in {baseline.title} and {other} in {candidate.title}; "
                    "correct the file and run it again, or give one of the metrics another name"
                )
    return {**first, **second}


def _with_values(cell: CellMeasurements | None) -> list[JobMeasurement]:
    return [] if cell is None else [job for job in cell.jobs if job.values]


def _prepare(
    first: CellMeasurements | None,
    second: CellMeasurements | None,
    cell: str,
    name: str,
    metric: Metric,
    gate: float,
    allowed: Collection[str],
) -> CellComparison | _Pair:
    sides = [[] if side is None else side.with_metric(name) for side in (first, second)]
    values = [[job.values[name] for job in side] for side in sides]
    medians = [median(each) if each else None for each in values]

    def answer(verdict: Verdict, why: str) -> CellComparison:
        return CellComparison(
            cell=cell,
            metric=name,
            unit=metric.unit,
            better=metric.better,
            gate=gate,
            baseline=medians[0],
            candidate=medians[1],
            verdict=verdict,
            why=why,
        )

    lacking = [which for which, each in zip(("baseline", "candidate"), values, strict=True) if not each]
    if lacking:
        return answer(Verdict.MISSING, f"no value in the {' and the '.join(lacking)}")
    partly = [len(side.without_metric(name)) for side in (first, second) if side is not None]
    if any(partly):
        why = f"{count(sum(partly), 'job')} succeeded without this metric; those that have it may be the lucky ones"
        return answer(Verdict.CANNOT_TELL, why)
    if min(map(min, values)) <= 0:
        return answer(Verdict.CANNOT_TELL, f"a value is {min(map(min, values)):g}; a ratio requires values above 0")
    why = _places_differ(*sides)
    if why and PLACE not in allowed:
        return answer(Verdict.CANNOT_TELL, f"{why}; run one side again, or use --allow=place")
    blocks = [_logarithms(side, name, apart=not why) for side in sides]
    found = difference(blocks[0], blocks[1])
    if found is None:
        return answer(Verdict.CANNOT_TELL, "too few jobs to know the noise; use at least 2 repeats, better 10")
    return _Pair(of=answer(Verdict.CANNOT_TELL, _lost(first, second, name)), difference=found)


def _lost(first: CellMeasurements | None, second: CellMeasurements | None, metric: str) -> str:
    """Say how many jobs failed, so that a verdict about the others is not taken for one about all."""
    texts = []
    for which, cell in (("baseline", first), ("candidate", second)):
        if cell is not None and (lost := len(cell.jobs) - len(cell.with_metric(metric))):
            texts.append(
                f"{lost} of {count(len(cell.jobs), 'job')} of the {which} {'has' if lost == 1 else 'have'} no value"
            )
    return "; ".join(texts)


def _places_differ(first: Sequence[JobMeasurement], second: Sequence[JobMeasurement]) -> str:
    mixes = [Counter(job.environment.place for job in side) for side in (first, second)]
    if any("" in mix for mix in mixes):
        return "the places of some jobs are unknown"
    return "" if environment_facts.same_mix(*mixes) else "the jobs ran in different places, or in another mix of them"


def _logarithms(side: Sequence[JobMeasurement], metric: str, *, apart: bool) -> dict[str, list[float]]:
    blocks: dict[str, list[float]] = {}
    for job in side:
        blocks.setdefault(job.environment.place if apart else "", []).append(math.log(job.values[metric]))
    return blocks


def _test(pairs: Sequence[_Pair]) -> list[CellComparison]:
    claims = [claim(pair.difference, pair.of.gate) for pair in pairs]
    levels = holm([probability for _, probability in claims])
    return [
        _judged(pair, claimed, true, level, claims=len(pairs))
        for pair, (claimed, _), (true, level) in zip(pairs, claims, levels, strict=True)
    ]


def _judged(pair: _Pair, claimed: Range, true: bool, level: float, *, claims: int) -> CellComparison:
    of, found = pair.of, pair.difference
    half = t_quantile(level, found.freedom) * found.error
    verdict, why = _verdict(claimed, of.better), of.why
    if not true:
        verdict, why = Verdict.CANNOT_TELL, _joined(_too_noisy(pair, claims), why)
    elif range_of(found.of_medians, of.gate) is not claimed:
        contradicted = "the medians do not agree: outliers, or several kinds of jobs"
        verdict, why = Verdict.CANNOT_TELL, _joined(contradicted, why)
    return CellComparison(
        cell=of.cell,
        metric=of.metric,
        unit=of.unit,
        better=of.better,
        gate=of.gate,
        baseline=of.baseline,
        candidate=of.candidate,
        verdict=verdict,
        why=why,
        ratio=_ratio(found.of_medians),
        low=_ratio(found.mean - half),
        high=_ratio(found.mean + half),
    )


def _ratio(logarithm: float) -> float:
    """Return the ratio; beyond a million, in either direction, a million."""
    return math.exp(max(-_LOG_RATIO_MAX, min(_LOG_RATIO_MAX, logarithm)))


def _joined(*texts: str) -> str:
    return "; ".join(text for text in texts if text)


def _verdict(claimed: Range, better: Better) -> Verdict:
    if claimed is Range.WITHIN:
        return Verdict.SAME
    return Verdict.FASTER if (claimed is Range.ABOVE) == (better is Better.HIGHER) else Verdict.SLOWER


def _too_noisy(pair: _Pair, claims: int) -> str:
    found, gate = pair.difference, pair.of.gate
    if not gate:
        return "no difference beyond the noise"
    needed = repeats_needed(found.deviation, gate=gate, places=found.places, claims=claims)
    reaches = f"the ratio may be on either side of the gate of {gate * 100:g} %"
    if needed is None:
        return f"{reaches}; the noise is too large for this gate"
    if 2 * needed <= found.freedom + found.places + 1:
        return f"{reaches}; the change is close to it"
    return f"{reaches}; {needed} repeats can hold it"
