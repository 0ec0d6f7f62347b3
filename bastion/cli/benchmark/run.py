"""`bastion benchmark run FILE`: submit a benchmark's jobs, or go on where an earlier call stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.benchmark import benchmark_file
from bastion.cli.benchmark.waiting import wait
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import code as job_code
from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import Refused
from bastion.core.plurals import count

if TYPE_CHECKING:
    from bastion.benchmark.file import Benchmark
    from bastion.client import Client
    from bastion.client.code.bundle import Bundle

_SAY_EVERY = 100


def _define(values: flags.FlagValues) -> None:
    benchmark_file.define(values)
    flags.DEFINE_boolean("wait", False, "Wait until the run has ended and its report is written.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.benchmark.members import group_of
    from bastion.benchmark.submit import Submission
    from bastion.client.code.files import commit_of

    path = call.operands[0]
    benchmark = benchmark_file.read_file(path)
    folder = benchmark_file.code_folder(benchmark, path)
    client, target = open_client(call, start=True)
    place = benchmark_file.place_of(call, client, benchmark)
    found = benchmark_file.check(client, benchmark, place)
    found.refuse()
    bundle = None if folder is None else _bundle(benchmark, folder)
    if bundle is not None:
        job_code.store(client, bundle)
    commit = "" if bundle is None else commit_of(bundle.folder)
    submission = Submission(client, benchmark, place, None if bundle is None else bundle.sha256, commit=commit)
    matrix = submission.matrix
    run = f"{matrix.name}/{matrix.run}"
    say(f"{'going on with' if submission.continued else 'started'} {run}")
    _tell_others(client, benchmark, matrix.run)
    try:
        submission.submit(_progress)
    except KeyboardInterrupt:
        say(
            f"bastion: not all jobs of {run} are submitted; run the file again to go on, or the run ends by itself "
            f"(bastion benchmark cancel {run}{target.suffix} ends it now)"
        )
        raise
    jobs = sum(len(cell.repeats) for cell in matrix.cells)
    say(
        f"submitted {count(jobs, 'job')}; this machine is no longer needed\n"
        f"  bastion benchmark status {run}{target.suffix}\n"
        f"  bastion benchmark cancel {run}{target.suffix}\n"
        f"  bastion list --group={group_of(matrix.name, matrix.run)}{target.suffix}"
    )
    warn_if_no_daemon(client, target)
    code = wait(client, matrix) if call.flags.wait else 0
    if call.json:
        emit_json({"run": run, "jobs": jobs, "finisher": matrix.finisher, "continued": submission.continued})
    elif not call.flags.wait:
        print(run)
    return code


def _bundle(benchmark: Benchmark, folder: Path) -> Bundle:
    from bastion.client.code import bundle

    try:
        found = bundle.pack(folder)
    except Refused as error:
        raise Refused(f"run.bundle is {plain(str(benchmark.run.bundle))}: {error}") from error
    for what in found.left_out[:3]:
        say(f"bastion: not packing {plain(what)}")
    return found


def _progress(done: int, jobs: int) -> None:
    if done % _SAY_EVERY == 0 and done < jobs:
        say(f"submitted {done} of {jobs} jobs")


def _tell_others(client: Client, benchmark: Benchmark, run: str) -> None:
    """Name the last run of another file that has not ended, so that nobody waits for it by mistake."""
    from bastion.benchmark import documents, measurements
    from bastion.core.errors import BastionError

    earlier = [each for each in measurements.runs(client.store, benchmark.name) if each < run]
    if not earlier:
        return
    try:
        matrix = documents.read_matrix(client.store, benchmark.name, earlier[-1])
        live = client.look(matrix.finisher)
    except BastionError:
        return
    if live is not None and live.result is None:
        say(
            f"bastion: {benchmark.name}/{earlier[-1]} is of another file or other code and has not ended; both run now "
            f"(bastion benchmark cancel {benchmark.name}/{earlier[-1]} ends it)"
        )


RUN = Command(
    summary="Runs a benchmark: submits all of its jobs, and a last one that collects, reports and tears down.",
    usage="FILE [--wait]",
    details="""Once the jobs are submitted, nothing depends on this machine: a job on the bastion waits for them, at
        most run.deadline, cancels the rest, runs [environment] down, and writes the results and the report below
        benchmarks/NAME/RUN/ in the bastion's bucket. If this command is interrupted, run it again: the same file and
        code go on where it stopped. If either has changed, or the earlier run has ended, it starts a new run.

        stdout is the name of the run, NAME/RUN.

        With --wait, it waits for the report. It exits with 0, or with 5 if
        a cell has no value of a metric; Ctrl-C detaches and leaves the run going (130).""",
    examples=("bastion benchmark run bench.toml", "bastion benchmark run --wait bench.toml"),
    operands=(1, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
