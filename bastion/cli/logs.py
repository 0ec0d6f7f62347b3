"""`bastion logs JOB`: a job's output, from the bucket.

Layer: cli.
"""

from __future__ import annotations

import contextlib

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.log_printer import LogPrinter
from bastion.cli.opening import open_client
from bastion.cli.output import plain, say
from bastion.cli.waiting import tell_end, wait_for
from bastion.client import Client, Ended, Followed, Sight, Stage, runs_of
from bastion.core import jobspec
from bastion.core.errors import Refused
from bastion.core.keys import Run


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean(
        "follow", False, "Go on until the job has ended; Ctrl-C detaches.", short_name="f", flag_values=values
    )
    flags.DEFINE_string("worker", "all", "Number of one worker, from 0, or all.", flag_values=values)
    flags.DEFINE_integer(
        "attempt",
        None,
        "Only this attempt, from 1; 0 is the run of the cleanup command.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "uid",
        None,
        "Of several jobs that had the name: the one with this uid (bastion history JOB).",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    client, target = open_client(call)
    name = call.operands[0]
    worker = _worker(call.flags.worker)
    client.check_name(name)
    sight = client.look(name)
    uid, runs = _choose(client, name, sight, call.flags.uid)
    live = sight is not None and sight.uid == uid and sight.stage in (Stage.SUBMITTED, Stage.KNOWN)
    hosts = _hosts(client, name, uid, sight)
    if worker is not None and hosts is not None and worker >= hosts:
        raise Refused(f"the job {name!r} has no worker {worker}; it has {hosts}, counted from 0")
    attempt = call.flags.attempt
    printer = LogPrinter(prefixed=False if worker is not None else None, as_json=call.json)
    if call.flags.follow and live and attempt != 0:
        what = Followed(worker=worker, first_attempt=attempt or 1)
        waited = wait_for(
            client,
            target,
            name,
            uid,
            generation=sight.generation if sight else 0,
            what=what,
            printer=printer,
            several_attempts=len(runs) > 1,
            hint=False,
        )
        if waited.ended is None:
            return waited.exit_code
        tell_end(name, waited.ended)
        return 0
    shown = [run for run in runs if (run.attempt > 0 if attempt is None else run.attempt == attempt)]
    if not shown:
        _nothing(name, sight, attempt, runs)
    for run in shown:
        logs = client.logs(name, run, worker=worker)
        printer.begin(run.attempt, 1 if run.attempt == 0 else hosts)
        if len(shown) > 1:
            say(f"--- attempt {run.attempt} ---")
        for pieces in logs.drain():
            printer.show(pieces)
    printer.finish()
    if call.flags.follow and sight is not None and sight.uid == uid and sight.result is not None:
        result = sight.result
        tell_end(name, Ended(result=result, exit_code=result.exit_code, message=result.message))
    if attempt is None and any(run.attempt == 0 for run in runs):
        say(f"bastion: its cleanup command has output, too: bastion logs --attempt=0 {name}{target.suffix}")
    return 0


def _worker(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise Refused(f"--worker={plain(text)}: write a worker's number, from 0, or all")
    return int(text)


def _choose(client: Client, name: str, sight: Sight | None, uid: str | None) -> tuple[str, list[Run]]:
    """The uid that is meant, and its runs with output."""
    if uid is not None:
        runs = [run for run in runs_of(client.store, name) if run.uid == uid]
        if not runs and (sight is None or sight.uid != uid):
            raise Refused(
                f"no job {name!r} with the uid {plain(uid)} has output; bastion history {name} shows the uids"
            )
        return uid, runs
    if sight is not None and sight.uid:
        return sight.uid, runs_of(client.store, name, sight.uid)
    # Its result has expired, or a foreign daemon ran it: the output alone is left.
    everything = runs_of(client.store, name)
    if not everything and sight is None:
        raise client.unknown(name)
    newest = everything[-1].uid if everything else ""
    return newest, [run for run in everything if run.uid == newest]


def _hosts(client: Client, name: str, uid: str, sight: Sight | None) -> int | None:
    if sight is not None and sight.uid == uid:
        if sight.record is not None:
            return sight.record.job.hosts
        if sight.result is not None:
            with contextlib.suppress(Refused):  # somebody else's document
                return jobspec.from_document(sight.result.document, name=name).hosts
    spec = client.spec(name, uid) if uid else None
    return spec.hosts if spec else None


def _nothing(name: str, sight: Sight | None, attempt: int | None, runs: list[Run]) -> None:
    if attempt is not None:
        there = ", ".join(str(run.attempt) for run in runs) or "none"
        raise Refused(f"attempt {attempt} of {name!r} has no output; attempts with output: {there}")
    if sight is not None and sight.stage is Stage.INVALID:
        raise Refused(f"the spec of {name!r} is refused, so it never ran: {plain(sight.problem)}")
    say(f"bastion: {name} has no output{'' if sight and sight.stage is Stage.COMPLETED else ' yet'}")


LOGS = Command(
    summary="Shows a job's output.",
    usage="JOB [-f] [--worker=N] [--attempt=N]",
    details="""The job's stdout comes on stdout and its stderr on stderr. With several hosts each line begins with the
        worker's number, unless --worker picks one. All attempts are shown one after another; output that was lost is
        reported where it is missing.

        --output=json gives one JSON object per line of output: attempt, worker, at, stream, line.""",
    examples=("bastion logs -f train-1", "bastion logs train-1 --worker=3 --attempt=2"),
    operands=(1, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
