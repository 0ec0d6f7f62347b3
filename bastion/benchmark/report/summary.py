"""The numbers of a report, and those of the earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bastion.benchmark import layout
from bastion.benchmark.layout import CellSummary, MetricSummary, Summary
from bastion.benchmark.measurements import CellMeasurements, RunMeasurements, is_measurement, runs
from bastion.benchmark.statistics import median_interval
from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound
from bastion.ports import ObjectStore

# Earlier runs that a report shows.
HISTORY_RUNS = 20
SUMMARY = "summary.json"


def summarize(run: RunMeasurements) -> Summary:
    return Summary(
        name=run.matrix.name,
        run=run.matrix.run,
        created_at=run.matrix.created_at,
        metrics=run.matrix.metrics,
        cells=[
            CellSummary(
                cell=cell.cell,
                variables=cell.variables,
                jobs=len(cell.jobs),
                metrics={name: _metric(cell, name) for name in run.matrix.metrics if cell.with_metric(name)},
            )
            for cell in run.cells
        ],
    )


def _metric(cell: CellMeasurements, name: str) -> MetricSummary:
    values = cell.values(name)
    interval = median_interval(values)
    return MetricSummary(median=median(values), low=interval.low, high=interval.high, jobs=len(values))


def history(store: ObjectStore, name: str, run: str) -> list[Summary]:
    """Return the summaries of the runs before this one, oldest first; runs without a readable report are left out."""
    found: list[Summary] = []
    for earlier in _latest([each for each in runs(store, name) if each < run]):
        key = layout.report(name, earlier, SUMMARY)
        try:
            data = store.get(key, max_bytes=limits.BENCHMARK_DOCUMENT_MAX_BYTES).data
            summary = layout.read(Summary, data, key)
        except (NotFound, InvalidDocument):
            continue
        of_metrics = [each for cell in summary.cells for each in cell.metrics.values()]
        if all(is_measurement(value) for each in of_metrics for value in (each.median, each.low, each.high)):
            found.append(summary)
    return found


def _latest(found: Sequence[str]) -> Sequence[str]:
    return sorted(found)[-HISTORY_RUNS:]
