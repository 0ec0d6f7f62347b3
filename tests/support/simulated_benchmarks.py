"""Runs of a benchmark whose noise is known: the luck of a place, of a job, and of each iteration."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from bastion.benchmark import layout
from bastion.benchmark.layout import (
    Better,
    Cell,
    CellResult,
    Matrix,
    Metric,
    Outcome,
    Repeat,
    Value,
)
from bastion.benchmark.measurements import CellMeasurements, JobMeasurement, RunMeasurements, measured
from bastion.core.bucket.results import Environment
from bastion.ports import ObjectStore

METRIC = "seconds"
PLACE_DEVIATION = 0.05
JOB_DEVIATION = 0.02
ITERATION_DEVIATION = 0.01
ITERATIONS = 5
# What the luck of a job is drawn from: mean 0 and standard deviation 1.
SHAPES: Mapping[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 1),
    "heavy": lambda draw: draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2)),  # Student's t with 3 degrees
    "skewed": lambda draw: draw.expovariate(1) - 1,
    "two-kinds": lambda draw: 2.0 if draw.random() < 0.2 else -0.5,
}


def matrix_of(
    cells: Sequence[str], repeats: int, *, metrics: Mapping[str, Metric] | None = None, run: str = "A", warmup: int = 0
) -> Matrix:
    return Matrix(
        name="sim",
        run=f"20260101T000000Z-{ord(run):08x}",
        project="research",
        user="ann",
        seed=1,
        created_at="2026-01-01T00:00:00.000000Z",
        file_sha256="0" * 64,
        metrics=dict(metrics or {METRIC: Metric(unit="s", better=Better.LOWER)}),
        warmup=warmup,
        cells=[
            Cell(
                cell=cell,
                variables={"size": number + 1},
                repeats=[Repeat(repeat=each + 1, job=f"sim-{number}-{each + 1}") for each in range(repeats)],
            )
            for number, cell in enumerate(cells)
        ],
        finisher="sim-finish",
    )


def run_of(matrix: Matrix, results: Sequence[CellResult | str]) -> RunMeasurements:
    """A run with these results, in the order of the matrix's jobs."""
    given = iter(results)
    return RunMeasurements(
        matrix=matrix,
        cells=[
            CellMeasurements(
                cell=cell.cell,
                variables=cell.variables,
                jobs=[measured(matrix, each.repeat, each.job, next(given)) for each in cell.repeats],
            )
            for cell in matrix.cells
        ],
    )


def result_of(
    cell: str = "c0",
    repeat: int = 1,
    *values: float,
    place: str = "zone/host-0",
    metric: str = METRIC,
    **fields: object,
) -> CellResult:
    """A job that succeeded with these values."""
    document = {
        "cell": cell,
        "repeat": repeat,
        "job": f"{cell}-{repeat}",
        "uid": "abcdefghij",
        "outcome": Outcome.SUCCEEDED,
        "values": {metric: [Value(value=value) for value in values]},
        "environment": Environment(place=place),
        **fields,
    }
    return CellResult.model_validate(document)


def _levels(
    draw: random.Random,
    matrix: Matrix,
    places: Mapping[str, float],
    factors: Mapping[str, float] | None,
    shape: str = "normal",
) -> Iterator[tuple[Cell, Repeat, str, list[float]]]:
    """Yield each job with its place and its iterations; the repeats of a cell take turns at the places."""
    names = list(places)
    for cell in matrix.cells:
        for each in cell.repeats:
            place = names[each.repeat % len(names)]
            level = math.log((factors or {}).get(cell.cell, 1.0)) + places[place] + JOB_DEVIATION * SHAPES[shape](draw)
            yield cell, each, place, [math.exp(level + draw.gauss(0, ITERATION_DEVIATION)) for _ in range(ITERATIONS)]


def simulated(
    draw: random.Random,
    matrix: Matrix,
    places: Mapping[str, float],
    *,
    factors: Mapping[str, float] | None = None,
    shape: str = "normal",
) -> RunMeasurements:
    """A run as it is measured, without its documents.

    Args:
        places: Names, and the logarithm of each one's luck.
        factors: By cell: by how much it is slower than the others.
        shape: Of the luck of jobs, one of `SHAPES`.
    """
    jobs: dict[str, list[JobMeasurement]] = {cell.cell: [] for cell in matrix.cells}
    for cell, each, place, values in _levels(draw, matrix, places, factors, shape):
        if place not in _SUCCEEDED:
            _SUCCEEDED[place] = result_of(place=place)
        value = sorted(values)[ITERATIONS // 2]
        jobs[cell.cell].append(
            JobMeasurement(repeat=each.repeat, job=each.job, values={METRIC: value}, result=_SUCCEEDED[place])
        )
    return RunMeasurements(
        matrix=matrix,
        cells=[
            CellMeasurements(cell=cell.cell, variables=cell.variables, jobs=jobs[cell.cell]) for cell in matrix.cells
        ],
    )


def documents(
    draw: random.Random,
    matrix: Matrix,
    places: Mapping[str, float],
    *,
    factors: Mapping[str, float] | None = None,
    **environment: object,
) -> list[CellResult]:
    """The results of such a run, in the order of the matrix's jobs."""
    return [
        result_of(
            cell.cell,
            each.repeat,
            *values,
            job=each.job,
            environment=Environment.model_validate({"place": place, **environment}),
            logs=f"logs/{each.job}.d/",
        )
        for cell, each, place, values in _levels(draw, matrix, places, factors)
    ]


def store_run(store: ObjectStore, matrix: Matrix, results: Sequence[CellResult | bytes | None]) -> str:
    """Write a run's documents; return its NAME/RUN. None: that job has no document."""
    store.put(layout.matrix(matrix.name, matrix.run), matrix.to_bytes(), generation=0)
    given = iter(results)
    for cell in matrix.cells:
        for each in cell.repeats:
            result = next(given)
            if result is not None:
                data = result if isinstance(result, bytes) else result.to_bytes()
                store.put(layout.cell(matrix.name, matrix.run, cell.cell, each.repeat), data, generation=0)
    return f"{matrix.name}/{matrix.run}"


# Results without their values: a simulated job's number is made beforehand.
_SUCCEEDED: dict[str, CellResult] = {}


def luck(draw: random.Random, count: int, prefix: str = "zone/host") -> dict[str, float]:
    """So many places, each with its luck."""
    return {f"{prefix}-{number}": draw.gauss(0, PLACE_DEVIATION) for number in range(count)}
