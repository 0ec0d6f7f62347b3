"""Write a run's report beside it in the bucket, or into a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bastion.benchmark import layout
from bastion.benchmark.documents import replace
from bastion.benchmark.measurements import RunMeasurements, read_run
from bastion.benchmark.report.contents import contents
from bastion.benchmark.report.page import page
from bastion.benchmark.report.summary import SUMMARY, history
from bastion.benchmark.report.texts import comma_separated, markdown
from bastion.core.errors import Refused
from bastion.ports import ObjectStore

INDEX = "index.html"


def report_files(store: ObjectStore, run: RunMeasurements) -> dict[str, bytes]:
    """Return the report's files by their names. The summary is the last: it says that the others are there."""
    of = contents(run, history(store, run.matrix.name, run.matrix.run))
    return {
        INDEX: page(of).encode(),
        "report.md": markdown(of).encode(),
        "report.csv": comma_separated(run).encode(),
        SUMMARY: of.summary.to_bytes() + b"\n",
    }


def write_report(store: ObjectStore, name: str, run: str) -> RunMeasurements:
    """Read a run, and write its report into the bucket; an earlier report of the run is replaced.

    Raises:
        PreconditionFailed: Someone else writes the same report.
    """
    found = read_run(store, name, run)
    for file, data in report_files(store, found).items():
        replace(store, layout.report(name, run, file), data)
    return found


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files into a folder, which is created; raises Refused if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
    except OSError as error:
        raise Refused(f"cannot write the report into {str(folder)!r}: {error.strerror}") from error
