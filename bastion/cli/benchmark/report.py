"""`bastion benchmark report RUN`: write a run's report, and show its medians."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.benchmark import runs
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, say, table
from bastion.client import Client, Stage
from bastion.core.errors import Refused

if TYPE_CHECKING:
    from bastion.benchmark.layout import Summary
    from bastion.benchmark.report.contents import Problem

_PROBLEMS_SHOWN = 10


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("dir", None, "Write the report into this folder, not into the bucket.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.benchmark import layout
    from bastion.benchmark.comparison import EXIT_MISSING
    from bastion.benchmark.measurements import read_run
    from bastion.benchmark.report.contents import problems
    from bastion.benchmark.report.summary import summarize
    from bastion.benchmark.report.writing import INDEX, report_files, write_files, write_report

    client, target = open_client(call)
    name, run = runs.find(client, call.operands[0])
    if call.flags.dir is None:
        _check_ended(client, name, run)
        found = write_report(client.store, name, run)
        where = f"{target.root.url}/{layout.report(name, run, INDEX)}"
    else:
        found = read_run(client.store, name, run)
        write_files(report_files(client.store, found), Path(call.flags.dir))
        where = str(Path(call.flags.dir) / INDEX)
    if call.json:
        emit_json(summarize(found).model_dump(mode="json"))
    else:
        _show(summarize(found))
        _tell_problems(problems(found))
    say(f"bastion: wrote {plain(where)}")
    return EXIT_MISSING if found.missing() else 0


def _check_ended(client: Client, name: str, run: str) -> None:
    """Raise Refused if the run goes on: its own report, at its end, must not meet ours."""
    from bastion.benchmark import documents

    info = client.look(documents.read_matrix(client.store, name, run).finisher)
    if info is not None and info.stage in (Stage.SUBMITTED, Stage.KNOWN):
        raise Refused(
            f"the run {name}/{run} has not ended, and writes its report when it does; --dir=DIR writes what there is "
            "now into a folder"
        )


def _show(summary: Summary) -> None:
    from bastion.benchmark.report.numbers import interval_text, number

    rows = []
    for cell in summary.cells:
        for name, metric in summary.metrics.items():
            found = cell.metrics.get(name)
            shown = ("-", "missing") if found is None else (number(found.median), interval_text(found))
            jobs = f"{0 if found is None else found.jobs} of {cell.jobs}"
            rows.append((cell.cell, f"{name} ({metric.unit})", jobs, *shown))
    print(table(("CELL", "METRIC", "JOBS", "MEDIAN", "INTERVAL"), rows), end="")


def _tell_problems(found: list[Problem]) -> None:
    for each in found[:_PROBLEMS_SHOWN]:
        say(f"bastion: {each.cell}, repeat {each.repeat} (job {each.job}): {each.outcome}: {each.reason}")
    if len(found) > _PROBLEMS_SHOWN:
        say(f"bastion: ... and {len(found) - _PROBLEMS_SHOWN} more; the report has all of them")


REPORT = Command(
    summary="Writes a run's report, and shows its medians.",
    usage="NAME[/RUN] [--dir=DIR] [--output=json]",
    details="""The report is one HTML file with pictures, beside it the same as Markdown and CSV. Without --dir it is
        written beside the run, as the run itself does when it ends; before that, only --dir writes one. RUN is the
        newest one by default.

        Pictures require matplotlib: pip install 'bastion[plot]'. Exit codes: 0, 5 if a cell has no value of a
        metric, or 64 if the run has not ended.""",
    examples=("bastion benchmark report matmul", "bastion benchmark report matmul --dir=/tmp/matmul"),
    operands=(1, 1),
    define=_define,
    takes_output=True,
    run=_run,
)
