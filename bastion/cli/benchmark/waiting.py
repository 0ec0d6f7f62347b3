"""`bastion benchmark run --wait`: follow a run to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bastion.cli.output import plain, say
from bastion.client import Client, Stage
from bastion.core import plurals
from bastion.core.errors import EXIT_DETACHED, StoreUnavailable

if TYPE_CHECKING:
    from bastion.benchmark.layout import Matrix

_NAMED_MAX = 5


def wait(client: Client, matrix: Matrix) -> int:
    """Wait for the finisher, then tell how the cells ended; return the exit code."""
    try:
        _wait(client, matrix)
    except KeyboardInterrupt:
        say(f"detached; the run goes on (bastion benchmark status {matrix.name}/{matrix.run})")
        return EXIT_DETACHED
    return tell_end(client, matrix)


def _wait(client: Client, matrix: Matrix) -> None:
    from bastion.benchmark.finish import live_jobs

    told = -1
    while True:
        try:
            info = client.look(matrix.finisher)
            if info is None or info.stage in (Stage.COMPLETED, Stage.INVALID):
                return
            live = len(live_jobs(client, matrix))
        except StoreUnavailable as error:
            say(f"bastion: {plain(error)}; looking again")
        else:
            if live != told:
                told = live
                say(f"{plurals.count(live, 'job')} to go" if live else "all jobs have ended; collecting")
        client.clock.sleep(client.pace.pause(4))


def tell_end(client: Client, matrix: Matrix) -> int:
    """Say what is missing, and where the report is."""
    from bastion.benchmark import layout
    from bastion.benchmark.comparison import EXIT_MISSING
    from bastion.benchmark.measurements import read_run

    found = read_run(client.store, matrix.name, matrix.run)
    jobs = [(cell.cell, job) for cell in found.cells for job in cell.jobs]
    bad = [(cell, job) for cell, job in jobs if job.problem]
    for cell, job in bad[:_NAMED_MAX]:
        say(f"bastion: {cell}, repeat {job.repeat}: {job.outcome.value}: {plain(job.problem)}")
    if len(bad) > _NAMED_MAX:
        say(f"bastion: {len(bad) - _NAMED_MAX} more")
    whole = sum(1 for _, job in jobs if found.is_whole(job))
    say(f"{whole} of {plurals.count(len(jobs), 'job')} measured all metrics")
    where = layout.report(matrix.name, matrix.run, "index.html")
    if client.store.head(where) is not None:
        say(f"report: {client.root.url}/{where}")
    else:
        say(
            f"bastion: there is no report; see bastion logs {matrix.finisher}, and then bastion benchmark report "
            f"{matrix.name}/{matrix.run}"
        )
    return EXIT_MISSING if found.missing() else 0
