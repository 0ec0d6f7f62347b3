"""The report as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence

from bastion.benchmark.layout import CellSummary
from bastion.benchmark.measurements import RunMeasurements
from bastion.benchmark.report.contents import Contents, facts, label, problems
from bastion.benchmark.report.numbers import interval_text, noise_text, number
from bastion.core.plain_text import plain_line
from bastion.core.plurals import count

# What would be markup within a line.
_MARKUP = re.compile(r"([\\`*_\[\]|<>~&$])")
_COLUMNS = ("cell", "variables", "repeat", "job", "uid", "outcome", "metric", "value", "unit", "place", "problem")


def markdown(of: Contents) -> str:
    matrix = of.run.matrix
    found = problems(of.run)
    jobs = sum(len(cell.jobs) for cell in of.run.cells)
    parts = [
        f"# {_escaped(matrix.name)}\n",
        f"Run {_escaped(matrix.run)}, {count(len(of.run.cells), 'cell')}, {count(jobs, 'job')}.\n",
    ]
    if found:
        parts.append(f"## {len(found)} of {count(jobs, 'job')} did not measure everything\n")
        parts.append(
            _table(
                ("cell", "repeat", "job", "outcome", "reason"),
                [(each.cell, str(each.repeat), each.job, each.outcome, each.reason) for each in found],
            )
        )
    for name, metric in matrix.metrics.items():
        parts.append(f"## {_escaped(name)}\n")
        parts.append(f"In {_escaped(metric.unit)}; {metric.better.value} is better; gate {metric.gate * 100:g} %.\n")
        parts.append(
            _table(
                ("cell", "jobs", "median", "interval", "noise"),
                [_row(of, cell, name) for cell in of.summary.cells],
            )
        )
    parts += ["## Environment\n", _table(("fact", "value"), facts(of.run))]
    return "\n".join(parts)


def _row(of: Contents, cell: CellSummary, metric: str) -> list[str]:
    found = cell.metrics.get(metric)
    if found is None:
        return [label(cell), f"0 of {cell.jobs}", "", "missing", ""]
    noise = noise_text(of.noise[cell.cell, metric])
    return [label(cell), f"{found.jobs} of {cell.jobs}", number(found.median), interval_text(found), noise]


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", plain_line(text))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header)]
    shown = [f"| {' | '.join(line)} |" for line in lines]
    shown += [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join(shown) + "\n"


def comma_separated(run: RunMeasurements) -> str:
    """Return one line per job and metric; the value is empty if the job has none."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for cell in run.cells:
        variables = json.dumps(dict(cell.variables), ensure_ascii=True)
        for job in cell.jobs:
            for name, metric in run.matrix.metrics.items():
                value = job.values.get(name)
                uid = job.result.uid if job.result else ""
                first = (cell.cell, variables, str(job.repeat), job.job, uid, job.outcome.value, name)
                last = (metric.unit, job.environment.place, job.problem)
                shown = "" if value is None else repr(value)
                lines.writerow([*map(_inert, first), shown, *map(_inert, last)])
    return written.getvalue()


def _inert(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    line = plain_line(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
