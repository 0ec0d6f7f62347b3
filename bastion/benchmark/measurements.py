"""What a run measured: one number per job and metric, read from its documents in the bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from bastion.benchmark import layout
from bastion.benchmark.documents import read_matrix
from bastion.benchmark.layout import CellResult, Matrix, Outcome, Variable
from bastion.client.concurrently import concurrently
from bastion.core import limits
from bastion.core.bucket.results import Environment
from bastion.core.errors import InvalidDocument, NotFound, Refused, StoreError
from bastion.core.plurals import count
from bastion.ports import ObjectStore

_CONNECTIONS = 16
_RUNS_SHOWN = 5
# By which the clocks of two machines may differ.
_CLOCK_SECONDS = 600.0
# Ratios and sums of such values are still numbers.
_VALUE_MIN, _VALUE_MAX = 1e-100, 1e100
_ENDS = {
    Outcome.FAILED: "the job failed",
    Outcome.CANCELLED: "the job was cancelled",
    Outcome.REFUSED: "the job was refused",
    Outcome.MISSING: "the job is missing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasurement:
    """One repeat of a cell.

    Attributes:
        values: By metric; only metrics of the run, in the run's units.
        problem: Why there are no values, or which of them do not count; empty if nothing is wrong.
        result: None if nothing was collected of the job.
    """

    repeat: int
    job: str
    values: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    result: CellResult | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome.MISSING if self.result is None else self.result.outcome

    @property
    def environment(self) -> Environment:
        return Environment() if self.result is None else self.result.environment


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMeasurements:
    """One cell: its jobs by their repeats."""

    cell: str
    variables: Mapping[str, Variable]
    jobs: Sequence[JobMeasurement]

    def with_metric(self, metric: str) -> list[JobMeasurement]:
        return [job for job in self.jobs if metric in job.values]

    def values(self, metric: str) -> list[float]:
        return [job.values[metric] for job in self.with_metric(metric)]

    def without_metric(self, metric: str) -> list[JobMeasurement]:
        """The jobs that succeeded and did not measure it, though others did."""
        if not self.with_metric(metric):
            return []
        return [job for job in self.jobs if job.outcome is Outcome.SUCCEEDED and metric not in job.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasurements:
    """All that a run measured, in the order of its matrix."""

    matrix: Matrix
    cells: Sequence[CellMeasurements]

    @property
    def title(self) -> str:
        return f"{self.matrix.name}/{self.matrix.run}"

    def is_whole(self, job: JobMeasurement) -> bool:
        """Whether the job has a value of every metric; lines that do not count may be a problem of it all the same."""
        return all(name in job.values for name in self.matrix.metrics)

    def missing(self) -> list[tuple[CellMeasurements, str]]:
        """The cells without any value of a metric, with that metric."""
        return [(cell, name) for cell in self.cells for name in self.matrix.metrics if not cell.with_metric(name)]


def runs(store: ObjectStore, name: str) -> Iterator[str]:
    """Yield the runs of that name, oldest first: one request each, and at most two more."""
    prefix = layout.runs(name)
    after = ""
    while True:
        found = next(store.list(prefix, start_after=after), None)
        if found is None:
            return
        run = found.key[len(prefix) :].partition("/")[0]
        if layout.RUN.fullmatch(run):
            yield run
        after = f"{prefix}{run}0"  # 0 follows / in the order of keys


def find_run(
    store: ObjectStore, text: str, *, now: float | None = None, tell: Callable[[str], None] = lambda _text: None
) -> tuple[str, str]:
    """Return name and run of `NAME/RUN`, or the newest run of `NAME`.

    Args:
        now: A run that is dated later is not the newest: its date is forged, or a clock is wrong. None: any may be.
        tell: Is told which run is the newest, and which ones are dated later.

    Raises:
        Refused: That is not the form of a run, or there is no such run.
    """
    name, _, run = text.partition("/")
    if not layout.NAME.fullmatch(name) or (run and not layout.RUN.fullmatch(run)):
        raise Refused(f"{text!r} is not a run; write NAME/RUN, or NAME for its newest run")
    if run and store.head(layout.matrix(name, run)) is not None:
        return name, run
    known = [each for each in runs(store, name) if each != run]
    if not run and now is not None:
        known, later = _dated(known, layout.stamp(now + _CLOCK_SECONDS))
        if later:
            tell(
                f"{name}/{later[-1]} is dated in the future, so it is not taken for the newest run; write NAME/RUN if "
                "you mean it"
            )
    # A client may have been stopped before it wrote the matrix, or someone deleted it.
    newest = next((each for each in reversed(known) if not run and store.head(layout.matrix(name, each))), None)
    if newest is not None:
        tell(f"the newest run of {name} is {name}/{newest}")
        return name, newest
    if not known or not run:
        raise Refused(f"no benchmark {name!r} was run on this bastion; check the name, or run it")
    shown = ", ".join(known[-_RUNS_SHOWN:])
    raise Refused(f"{name} has no run {run}: it was deleted, or belongs to another bastion; its newest: {shown}")


def _dated(known: Sequence[str], latest: str) -> tuple[list[str], list[str]]:
    """Return the runs until that time, and those after it."""
    until = [each for each in known if each[: len(latest)] <= latest]
    return until, [each for each in known if each[: len(latest)] > latest]


def read_run(store: ObjectStore, name: str, run: str) -> RunMeasurements:
    """Read a run.

    Raises:
        InvalidDocument: Its `matrix.json` is malformed. A malformed result is a problem of its job.
        StoreError: The bucket failed, or the run is gone (NotFound).
    """
    matrix = read_matrix(store, name, run)
    wanted = [(cell, repeat) for cell in matrix.cells for repeat in cell.repeats]

    def read(cell: str, repeat: int) -> CellResult | str:
        key = layout.cell(name, run, cell, repeat)
        try:
            data = store.get(key, max_bytes=limits.BENCHMARK_DOCUMENT_MAX_BYTES).data
            return layout.read(CellResult, data, key)
        except NotFound:
            return "no result is there; the run may still go on, or someone deleted it"
        except InvalidDocument as error:
            return str(error)

    answers = concurrently(
        [partial(read, cell.cell, repeat.repeat) for cell, repeat in wanted], connections=_CONNECTIONS
    )
    failed = next((answer for answer in answers if isinstance(answer, StoreError)), None)
    if failed is not None:
        raise failed
    jobs: dict[str, list[JobMeasurement]] = {cell.cell: [] for cell in matrix.cells}
    for (cell, repeat), answer in zip(wanted, answers, strict=True):
        assert not isinstance(answer, StoreError)
        jobs[cell.cell].append(measured(matrix, repeat.repeat, repeat.job, answer))
    return RunMeasurements(
        matrix=matrix,
        cells=[
            CellMeasurements(cell=cell.cell, variables=cell.variables, jobs=jobs[cell.cell]) for cell in matrix.cells
        ],
    )


def is_measurement(value: float) -> bool:
    """Whether ratios with the value can be computed."""
    return not value or _VALUE_MIN <= abs(value) <= _VALUE_MAX


def measured(matrix: Matrix, repeat: int, job: str, result: CellResult | str) -> JobMeasurement:
    """Return what a job measured; `result` is a text that says why there is none."""
    if isinstance(result, str):
        return JobMeasurement(repeat=repeat, job=job, problem=result)
    values: dict[str, float] = {}
    problems = [result.reason] if result.reason else []
    if result.outcome is not Outcome.SUCCEEDED:
        # What it measured before it failed is no measurement of the cell: whatever failed may have slowed it.
        return JobMeasurement(repeat=repeat, job=job, problem=result.reason or _ENDS[result.outcome], result=result)
    for name, metric in matrix.metrics.items():
        unit = (result.units or {}).get(name, metric.unit)
        given = result.values.get(name, [])
        counted = _after_warmup(given, matrix.warmup, result.environment.hosts)
        if unit != metric.unit:
            problems.append(f"{name} is in {unit}, but the benchmark says {metric.unit}; correct the command")
        elif not all(map(is_measurement, counted)):
            problems.append(
                f"a value of {name} is not between {_VALUE_MIN:g} and {_VALUE_MAX:g}, so it is no measurement; correct "
                "the command"
            )
        elif counted:
            values[name] = median(counted)
        elif given:
            problems.append(f"{name} has {count(len(given), 'value')}, all within the warmup of {matrix.warmup}")
        elif name not in result.reason:
            problems.append(f"the job did not measure {name}")
    return JobMeasurement(repeat=repeat, job=job, values=values, problem="; ".join(problems), result=result)


def _after_warmup(values: Sequence[layout.Value], warmup: int, hosts: int) -> list[float]:
    """The values after that step; of those without a step, all after that many.

    At most one per host is no series: it is a total, such as MLPerf's run time, which has no warmup.
    """
    unnumbered = [each.value for each in values if each.step is None]
    if len(unnumbered) > hosts:
        unnumbered = unnumbered[warmup:]
    return [each.value for each in values if each.step is not None and each.step > warmup] + unnumbered
