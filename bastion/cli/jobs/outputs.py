"""`bastion outputs JOB`: list what a job's hosts have stored, and fetch it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, store_of_outputs
from bastion.cli.output import emit_json, plain, say
from bastion.cli.rows import Column, write
from bastion.core.disk_limit import shown
from bastion.core.errors import Refused
from bastion.core.instants import to_rfc3339
from bastion.core.plurals import count

if TYPE_CHECKING:
    from bastion.client import JobInfo
    from bastion.client.outputs import Fetched, OutputFile, Outputs, Progress

# Of the JSON document.
_FORMAT = 1
_FAILURES_SHOWN = 20


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("to", None, "Fetch the files into this folder.", flag_values=values)
    flags.DEFINE_integer("worker", None, "Only this worker's.", lower_bound=0, flag_values=values)
    flags.DEFINE_integer(
        "attempt", None, "What this attempt stored, if it is still there. Default: the newest.", lower_bound=1,
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_boolean(
        "unproved", False, "Also show or fetch what no attempt of the job proves to have written.", flag_values=values
    )
    flags.DEFINE_boolean(
        "force", False, "With --to: replace files there that were not fetched from this job.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.client.outputs import find_outputs

    name, *patterns = call.operands
    given = call.flags
    if given.to is not None and not given.to:
        raise Refused("--to is empty; name a folder")
    if given.force and given.to is None:
        raise Refused("--force requires --to")
    client, _ = open_client(call)
    info = client.require(name)
    store = store_of_outputs(client, info)
    found = find_outputs(store, info, worker=given.worker, attempt=given.attempt, unproved=given.unproved)
    for problem in found.problems:
        say(f"bastion: passed over {problem}")
    if found.left_out:
        which = count(found.left_out, "manifest")
        say(
            f"bastion: left out {which} of outputs: no attempt of this job proves to have written them, so others may "
            "have; use --unproved to see them"
        )
    if not found.files:
        raise Refused(_nothing(call, info, found))
    chosen = found.selected(patterns)
    if not chosen.files:
        raise Refused(f"no output of {name!r} matches; bastion outputs {name} lists all {len(found.files)}")
    if given.to is not None:
        return _fetch(call, chosen, store)
    if call.json:
        emit_json(_document(client.root.url, chosen))
        return 0
    write(_columns(client.clock.now()), chosen.files, given.output)
    if sys.stdout.isatty():
        say(f"{count(len(chosen.files), 'file')}, {shown(chosen.size)}; to fetch them: bastion outputs {name} --to=DIR")
    return 0


def _fetch(call: Invocation, chosen: Outputs, store: Any) -> int:
    from bastion.client.outputs import fetch

    into = Path(call.flags.to).expanduser()
    wanted = chosen if call.flags.unproved else chosen.proved_only()
    left_out = len(chosen.files) - len(wanted.files)
    if left_out:
        say(
            f"bastion: left out {count(left_out, 'file')} that programs wrote to BASTION_OUTPUT_URL: nothing proves "
            "who did; use --unproved to fetch them, and do not run what they hold unless you trust everybody's jobs"
        )
    if not wanted.files:
        raise Refused("nothing to fetch: no attempt of this job proves to have written these files; see --unproved")
    with _bar() as on_progress:
        done = fetch(store, wanted, into, force=call.flags.force, on_progress=on_progress)
    if call.json:
        emit_json(_fetched_document(done))
    _tell(done)
    return 0 if done.complete else 1


def _tell(done: Fetched) -> None:
    for path, why in list(done.failures.items())[:_FAILURES_SHOWN]:
        say(f"bastion: not fetched: {plain(path)}: {plain(why)}")
    if len(done.failures) > _FAILURES_SHOWN:
        say(f"bastion: {len(done.failures) - _FAILURES_SHOWN} more were not fetched; use --output=json to see all")
    if done.stopped:
        say(f"bastion: stopped, {count(done.missing, 'file')} missing: {plain(done.stopped)}")
    there = f"; {done.present} were there already" if done.present else ""
    say(f"fetched {count(done.files, 'file')}, {shown(done.size)}, into {plain(str(done.path))}{there}")


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")

        def show(now: Progress) -> None:
            bar.update(
                task,
                completed=now.done_bytes,
                total=now.total_bytes,
                description=f"{now.done_files:,} of {now.total_files:,}",
            )

        yield show


def _nothing(call: Invocation, info: JobInfo, found: Outputs) -> str:
    """Why there is nothing to list, and what to do."""
    from bastion.client.jobs.job_info import Stage

    name = info.name
    if found.left_out or found.problems:
        return f"{name!r} has no outputs that can be believed; see above"
    if call.flags.attempt is not None and found.attempts:
        known = ", ".join(map(str, found.attempts))
        return f"attempt {call.flags.attempt} of {name!r} has no outputs; what is stored is of attempt {known}"
    if call.flags.worker is not None and found.sources:
        return f"worker {call.flags.worker} of {name!r} has no outputs; {', '.join(found.sources)} have"
    if info.stage in (Stage.SUBMITTED, Stage.INVALID):
        return f"{name!r} has not run yet, so it has no outputs; bastion why {name} says why"
    if not info.stores_outputs:
        return (
            f"{name!r} stores no outputs: it was launched without --output_dir; look where its command writes to "
            "(for AXLearn its --trainer_dir or similar), and launch the next one with --output_dir=FOLDER"
        )
    if info.stage is Stage.COMPLETED:
        return f"{name!r} ended without outputs: its command wrote nothing to its folder; see bastion logs {name}"
    return f"{name!r} has stored no outputs yet; its hosts store changes about every minute: try again then"


def _columns(now: float) -> list[Column[OutputFile]]:
    return [
        Column(key="path", title="PATH", text=_path, shortened=True),
        Column(
            key="bytes",
            title="SIZE",
            text=lambda file: "-" if file.target or _is_folder(file) else shown(file.size),
            value=lambda file: file.size,
        ),
        Column(key="worker", title="WORKER", text=lambda file: _number(file.worker), leaves=1),
        Column(key="attempt", title="ATTEMPT", text=lambda file: _number(file.attempt), leaves=3),
        Column(
            key="modified",
            title="CHANGED",
            text=lambda file: phrases.age(file.modified, now),
            value=lambda file: _instant(file.modified),
            leaves=2,
        ),
        Column(key="proved", title="PROVED", text=lambda file: "yes" if file.proved else "no", leaves=4),
        Column(key="mode", title="MODE", text=lambda file: f"{file.mode:04o}", wide=True),
        Column(key="type", title="TYPE", text=lambda file: file.file_type.value, wide=True),
    ]


def _is_folder(file: OutputFile) -> bool:
    return file.file_type.value == "folder"


def _path(file: OutputFile) -> str:
    if file.target:
        return f"{file.path} -> {file.target}"
    return f"{file.path}/" if _is_folder(file) else file.path


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _instant(seconds: float | None) -> str | None:
    try:
        return None if seconds is None else to_rfc3339(seconds)
    except (ValueError, OverflowError, OSError):  # a host may set any time
        return None


def _document(root: str, found: Outputs) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "root": root,
        "job": found.job,
        "uid": found.uid,
        "place": found.place or root,
        "left_out": found.left_out,
        "files": [
            {
                "path": file.path,
                "type": file.file_type.value,
                "bytes": file.size,
                "worker": file.worker,
                "attempt": file.attempt,
                "modified": _instant(file.modified),
                "mode": f"{file.mode:04o}",
                "proved": file.proved,
                "target": file.target or None,
            }
            for file in found.files
        ],
    }


def _fetched_document(done: Fetched) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "to": str(done.path),
        "files": done.files,
        "bytes": done.size,
        "present": done.present,
        "failures": done.failures,
        "stopped": done.stopped,
    }


OUTPUTS = Command(
    summary="Lists what a job's hosts have stored, and fetches it.",
    usage="JOB [PATTERN ...] [--to=DIR] [--worker=N] [--attempt=N] [--output=table|wide|json|csv]",
    details="""Hosts store their --output_dir about every minute and at the end. This shows the newest of each host that
        is whole and that an attempt of the job proves to have written. Others are left out, and a line on stderr says
        how many. What programs wrote to BASTION_OUTPUT_URL is marked as not proved.

        A PATTERN with a slash matches paths from their beginning, one without any part of a path; quote it.

        With --to the files are fetched, each verified by the SHA-256 in its manifest. Files of several workers go to
        DIR/worker-0, DIR/worker-1 and so on. The same command goes on where it was interrupted, and later fetches only
        what is missing or differs. It replaces no file that it did not write, unless you say --force.

        Exits with 0 if all is there, 1 if some could not be fetched, 64 if there is nothing to fetch.""",
    examples=(
        "bastion outputs my-job",
        "bastion outputs my-job --to=results",
        "bastion outputs my-job 'checkpoints/step-900/*' '*.json' --worker=0 --to=results",
        "bastion outputs my-job --output=json",
    ),
    operands=(1, None),
    completes="jobs",
    takes_rows=True,
    define=_define,
    run=_run,
)
