"""What a report says, whatever its form: rows, problems, and what its pictures show. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bastion.benchmark.layout import CellSummary, MetricSummary, Outcome, Summary, Variable
from bastion.benchmark.measurements import CellMeasurements, RunMeasurements
from bastion.benchmark.noise import Noise, noise
from bastion.benchmark.report.numbers import number
from bastion.benchmark.report.pictures import LINES_MAX, ROWS_MAX, Line, Point, Row
from bastion.benchmark.report.summary import summarize
from bastion.core.model import instance_types

# Pictures of lines per metric; cells beyond them are in the tables only.
_PICTURES_MAX = 4
# Ratio of medians from which the cells of a picture are shown as multiples of their own.
_RELATIVE_FROM = 1.5
_DATE_CHARS = len("20260102T0304")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A job that did not measure all that it should. `outcome`: `partly` if it succeeded and measured something."""

    cell: str
    repeat: int
    job: str
    outcome: str
    reason: str
    logs: str
    outputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Medians over the sizes of one variable."""

    variable: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything about a run that its report shows. `history`: summaries of earlier runs, oldest first."""

    run: RunMeasurements
    summary: Summary
    noise: Mapping[tuple[str, str], Noise]
    history: Sequence[Summary]


def contents(run: RunMeasurements, history: Sequence[Summary] = ()) -> Contents:
    return Contents(
        run=run,
        summary=summarize(run),
        noise={(each.cell, each.metric): each for each in noise(run)},
        history=history,
    )


def label(cell: CellMeasurements | CellSummary) -> str:
    """Return the cell's variables, or its name if it has none."""
    return ", ".join(f"{name}={shown(value)}" for name, value in cell.variables.items()) or cell.cell


def shown(value: Variable) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def problems(run: RunMeasurements) -> list[Problem]:
    return [
        Problem(
            cell=cell.cell,
            repeat=job.repeat,
            job=job.job,
            outcome="partly" if job.outcome is Outcome.SUCCEEDED and job.values else job.outcome.value,
            reason=job.problem,
            logs="" if job.result is None else job.result.logs,
            outputs="" if job.result is None else job.result.outputs,
        )
        for cell in run.cells
        for job in cell.jobs
        if job.problem
    ]


def facts(run: RunMeasurements) -> list[tuple[str, str]]:
    """Return the facts of the jobs' environments: one value that all share, or each with its number of jobs."""
    found: dict[str, Counter[str]] = {}
    for cell in run.cells:
        for job in cell.jobs:
            if job.result is None:
                continue
            for name, value in job.environment.model_dump().items():
                flat = (
                    {f"{name}.{each}": of for each, of in value.items()} if isinstance(value, dict) else {name: value}
                )
                for key, each in flat.items():
                    found.setdefault(key, Counter())[str(each)] += 1
    jobs = sum(job.result is not None for cell in run.cells for job in cell.jobs)
    return [(key, _mix(values, jobs)) for key, values in sorted(found.items()) if set(values) not in ({""}, {"0"})]


def _mix(values: Counter[str], jobs: int) -> str:
    if len(values) == 1 and values.total() == jobs:
        return next(iter(values))
    return ", ".join(f"{value or 'unknown'} ({jobs})" for value, jobs in sorted(values.items()))


def rows(of: Contents, metric: str) -> Iterator[tuple[str, list[Row]]]:
    """Yield the axis and the rows of each picture of values.

    Cells of different sizes are shown as multiples of their medians: on one axis, noise would be too small to see.
    """
    unit = of.run.matrix.metrics[metric].unit
    found = [
        (cell, each)
        for cell, summary in zip(of.run.cells, of.summary.cells, strict=True)
        if (each := summary.metrics.get(metric)) is not None
    ]
    for start in range(0, len(found), ROWS_MAX):
        part = found[start : start + ROWS_MAX]
        medians = [each.median for _, each in part]
        relative = min(medians) > 0 and max(medians) / min(medians) >= _RELATIVE_FROM
        axis = f"{metric}, of the cell's median" if relative else f"{metric} ({unit})"
        yield axis, [_row(cell, each, metric, unit if relative else "") for cell, each in part]


def _row(cell: CellMeasurements, found: MetricSummary, metric: str, unit: str) -> Row:
    """Return a cell's row; `unit`: of the median, which the others are then multiples of."""
    one = found.median if unit else 1.0
    return Row(
        label=f"{label(cell)} ({number(found.median)} {unit})" if unit else label(cell),
        values=[value / one for value in cell.values(metric)],
        median=found.median / one,
        low=found.low / one,
        high=found.high / one,
    )


def scalings(of: Contents, metric: str) -> Iterator[Scaling]:
    """Yield a picture for each variable that is a size, up to `LINES_MAX` combinations of the others in each."""
    cells = [cell for cell in of.summary.cells if metric in cell.metrics]
    for name in dict.fromkeys(name for cell in cells for name in cell.variables):
        sizes = {cell.cell: size for cell in cells if (size := _size(cell.variables.get(name))) is not None}
        if len(sizes) < len(cells) or len(set(sizes.values())) < 2:
            continue
        combinations: dict[str, list[Point]] = {}
        for cell in cells:
            others = ", ".join(f"{key}={shown(value)}" for key, value in cell.variables.items() if key != name)
            each = cell.metrics[metric]
            combinations.setdefault(others or metric, []).append(
                Point(x=sizes[cell.cell], y=each.median, low=each.low, high=each.high)
            )
        drawn = [
            Line(label=text, points=sorted(points, key=lambda point: point.x))
            for text, points in combinations.items()
            if len(points) > 1
        ]
        for start in range(0, min(len(drawn), LINES_MAX * _PICTURES_MAX), LINES_MAX):
            yield Scaling(variable=name, lines=drawn[start : start + LINES_MAX])


def _size(value: Variable | None) -> float | None:
    """Return a number, or the units of an instance type; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = instance_types.find(value) if isinstance(value, str) else None
    return None if found is None else float(found.amount)


def histories(of: Contents, metric: str) -> Iterator[tuple[list[str], list[Line]]]:
    """Yield the runs' dates and the cells' medians of each picture, as multiples of the cell's first median."""
    unit = of.run.matrix.metrics[metric].unit
    past = [each for each in of.history if metric in each.metrics and each.metrics[metric].unit == unit]
    if not past:
        return
    found = [*past, of.summary]
    drawn = []
    for cell in of.summary.cells:
        points: list[Point] = []
        first = 0.0
        for at, summary in enumerate(found):
            each = next((one.metrics.get(metric) for one in summary.cells if one.cell == cell.cell), None)
            if each is None or each.median <= 0:
                continue
            first = first or each.median
            points.append(Point(x=at, y=each.median / first, low=each.low / first, high=each.high / first))
        if len(points) > 1:
            drawn.append(Line(label=label(cell), points=points))
    dates = [each.run[:_DATE_CHARS] for each in found]
    for start in range(0, min(len(drawn), LINES_MAX * _PICTURES_MAX), LINES_MAX):
        yield dates, drawn[start : start + LINES_MAX]
