"""`bastion logs JOB`: a job's output, from the bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.jobs.after import check_group, define_group
from bastion.cli.jobs.line_pattern import LinePattern
from bastion.cli.jobs.log_printer import LogPrinter
from bastion.cli.jobs.waiting import tell_end, wait_for
from bastion.cli.output import plain, say
from bastion.cli.since import since
from bastion.client import Client, Ended, FollowOptions, JobInfo, LogWindow, RunLogs, Stage, runs_of, slices_of
from bastion.client.jobs.follow import left_out
from bastion.core.bucket.keys import LogSource, Run
from bastion.core.errors import Refused
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.plurals import count
from bastion.user_config.target import Target

_TAIL_MAX = 100_000
# Of a group's completed jobs, those among so many of the newest are shown.
_COMPLETED_MAX = 1000
# Of specs that are not accepted yet, so many are looked at; they have no output.
_UNREAD_MAX = 1000


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean(
        "follow", False, "Follow the output until the job ends; Ctrl-C detaches.", short_name="f", flag_values=values
    )
    flags.DEFINE_string("worker", "all", "A worker's number, from 0, or all.", flag_values=values)
    flags.DEFINE_integer(
        "attempt",
        None,
        "Show only this attempt, from 1; 0 is the cleanup command's.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_string(
        "since",
        None,
        "Show only lines since then: 90s, 10m, 2h or 3d ago, or a time like 2026-01-02T03:04:05Z.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "tail",
        None,
        "Show only the last N lines of the existing output, across all workers and attempts.",
        lower_bound=0,
        upper_bound=_TAIL_MAX,
        flag_values=values,
    )
    flags.DEFINE_boolean("timestamps", False, "Start each line with its time, in UTC.", flag_values=values)
    flags.DEFINE_string(
        "grep", None, "Show only lines that contain a match of this regular expression (Python).", flag_values=values
    )
    flags.DEFINE_boolean(
        "proxy",
        False,
        "Show the output of the job's storage proxy (bastion launch --proxy) instead of the job's own.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "raw",
        False,
        "Pass control sequences on to the terminal. They can change its title, its clipboard and its content, so use "
        "this only for jobs you trust.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "unproved",
        False,
        "Show also what does not prove to be of the job's hosts: other jobs' hosts may have written it.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "uid",
        None,
        "Of several jobs with this name, show the one with this uid (see bastion history JOB).",
        flag_values=values,
    )
    define_group(values, "Show the output of all jobs of this group (bastion launch --group), one after another.")


def _run(call: Invocation) -> int:
    group = call.flags.group
    if bool(call.operands) == (group is not None):
        raise Refused("name one job, or a group of jobs with --group=NAME")
    if group is None:
        client, target = open_client(call)
        return _show(call, client, target, call.operands[0], call.flags.uid)
    check_group(group)
    if call.flags.follow:
        raise Refused(
            f"a group cannot be followed, only one job: bastion logs -f JOB; bastion list --group={group} names them"
        )
    if call.flags.uid:
        raise Refused("--uid shows one job; name it instead of --group")
    if call.json:
        raise Refused("--output=json shows one job; name it instead of --group")
    client, target = open_client(call)
    return _show_group(call, client, target, group)


def _show_group(call: Invocation, client: Client, target: Target, group: str) -> int:
    from bastion.client.jobs.groups import members

    found = members(client, group, completed=_COMPLETED_MAX, unread=_UNREAD_MAX)
    if not found:
        raise Refused(f"no job of group {group} among the live jobs and the newest {_COMPLETED_MAX} completed ones")
    begun = [member for member in found if not member.never_ran]
    for member in begun:
        say(f"==> {member.name} <==")
        with contextlib.suppress(NoOutput):
            _show(call, client, target, member.name, member.uid if member.stage is Stage.COMPLETED else None)
    if len(begun) < len(found):
        say(f"bastion: {count(len(found) - len(begun), 'job')} of group {group} did not run yet")
    return 0


class NoOutput(Refused):
    """Nothing of the job matches the flags."""


def _show(call: Invocation, client: Client, target: Target, name: str, wanted_uid: str | None) -> int:
    worker = _worker(call.flags.worker)
    window = _window(call, client.clock.now())
    client.check_name(name)
    info = client.look(name)
    uid, runs = _choose(client, name, info, wanted_uid)
    live = info is not None and info.uid == uid and info.stage in (Stage.SUBMITTED, Stage.KNOWN)
    spec, known = _spec_and_keys(client, name, uid, info)
    if not call.flags.unproved:
        runs = _proved(name, runs, known)
    hosts = spec.hosts if spec else None
    if worker is not None and hosts is not None and worker >= hosts:
        raise NoOutput(f"the job {name!r} has no worker {worker}; its workers are 0 to {hosts - 1}")
    attempt = call.flags.attempt
    following = call.flags.follow and live and attempt != 0
    shown = [run for run in runs if (run.attempt > 0 if attempt is None else run.attempt == attempt)]
    if following:
        shown = [run for run in runs if run.attempt >= (attempt or 1)]
    elif not shown:
        _nothing(name, info, attempt, runs)
    several = len(shown) > 1
    source: LogSource = "proxy" if call.flags.proxy else "worker"
    if call.flags.proxy and spec is not None and not (spec.runner and spec.runner.proxy):
        raise NoOutput(f"the job {name!r} has no storage proxy; use bastion launch --proxy to run one")
    public_keys = {run: (known.of(run) if known is not None else None) or "" for run in shown}
    if call.flags.unproved:
        public_keys = dict.fromkeys(shown, "")
    opened = _last(client, name, public_keys, window, hosts=hosts, worker=worker, source=source)
    printer = LogPrinter(
        prefixed=False if worker is not None else None,
        as_json=call.json,
        marks=True if several else None if following else False,
        timestamps=call.flags.timestamps,
        window=window,
        raw=call.flags.raw,
    )
    if following:
        waited = wait_for(
            client,
            target,
            name,
            uid,
            generation=info.generation if info else 0,
            what=FollowOptions(
                worker=worker,
                first_attempt=opened[0][0].attempt if opened else attempt or 1,
                since=window.since,
                tail=window.lines_back,
                source=source,
                unproved=call.flags.unproved,
            ),
            printer=printer,
            hint=False,
        )
        if waited.ended is None:
            return waited.exit_code
        tell_end(name, waited.ended)
        return 0
    for run, logs in opened:
        printer.begin(run.attempt, 1 if run.attempt == 0 else hosts, slices_of(spec))
        for pieces in logs.drain():
            printer.show(pieces)
    printer.finish()
    for _, logs in opened:
        if logs.unproved:
            say(f"bastion: {left_out(logs.unproved, logs.unproved_below)}")
    if shown and window.narrow and not printer.shown:
        say(f"bastion: {name} has output, but no line matches")
    if call.flags.follow and info is not None and info.uid == uid and info.result is not None:
        result = info.result
        tell_end(name, Ended(result=result, exit_code=result.exit_code, message=result.message))
    if attempt is None and any(run.attempt == 0 for run in runs):
        say(f"bastion: the cleanup command also has output: bastion logs --attempt=0 {name}{target.suffix}")
    return 0


def _last(
    client: Client,
    name: str,
    runs: Mapping[Run, str],
    window: LogWindow,
    *,
    hosts: int | None,
    worker: int | None,
    source: LogSource,
) -> list[tuple[Run, RunLogs]]:
    """Open the runs that hold the last lines asked for; all runs unless that number is known.

    `runs`: with their public keys.
    """
    left = window.lines_back
    opened: list[tuple[Run, RunLogs]] = []
    for run, public_key in reversed(list(runs.items())):
        logs = client.logs(
            name,
            run,
            hosts=hosts,
            worker=worker,
            since=window.since,
            tail=left,
            source=source,
            public_key=public_key,
        )
        opened.insert(0, (run, logs))
        if left is not None:
            left -= logs.locate()
            if left <= 0:
                break
    return opened


def _window(call: Invocation, now: float) -> LogWindow:
    pattern = call.flags.grep
    return LogWindow(
        since=None if call.flags.since is None else since(call.flags.since, now),
        tail=call.flags.tail,
        matches=LinePattern(pattern) if pattern else None,
    )


def _worker(text: str) -> int | None:
    if text == "all":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise Refused(f"--worker={plain(text)} is not a valid worker; use a number from 0, or all")
    return int(text)


def _choose(client: Client, name: str, info: JobInfo | None, uid: str | None) -> tuple[str, list[Run]]:
    """The uid to show, and its runs with output."""
    if uid is not None:
        runs = [run for run in runs_of(client.store, name) if run.uid == uid]
        if not runs and (info is None or info.uid != uid):
            raise NoOutput(
                f"no job {name!r} with the uid {plain(uid)} has output; use bastion history {name} to see the uids"
            )
        return uid, runs
    if info is not None and info.uid:
        return info.uid, runs_of(client.store, name, info.uid)
    # The result has expired, or a foreign daemon ran the job: only the output is left.
    everything = runs_of(client.store, name)
    if not everything and info is None:
        raise client.unknown(name)
    newest = everything[-1].uid if everything else ""
    return newest, [run for run in everything if run.uid == newest]


def _spec_and_keys(
    client: Client, name: str, uid: str, info: JobInfo | None
) -> tuple[JobSpec | None, RunPublicKeys | None]:
    if info is not None and info.uid == uid:
        if info.record is not None:
            return info.record.job, info.public_keys
        if info.result is not None:
            with contextlib.suppress(Refused):  # a foreign document
                return job_spec.from_document(info.result.document, name=name), info.public_keys
    return client.spec_and_keys(name, uid) if uid else (None, None)


def _proved(name: str, runs: list[Run], known: RunPublicKeys | None) -> list[Run]:
    """The runs that the bastion knows; tell of the others."""
    if known is None:
        if runs:
            say(f"bastion: no state or result of {name} is left, so nothing proves who wrote this output")
        return runs
    strange = [run for run in runs if known.of(run) is None]
    if strange:
        which = count(len(strange), "attempt")
        say(
            f"bastion: left out the output of {which} of which the bastion has no record, such as {strange[0]}: others "
            "may have written it; use --unproved to see it"
        )
    return [run for run in runs if run not in strange]


def _nothing(name: str, info: JobInfo | None, attempt: int | None, runs: list[Run]) -> None:
    if attempt is not None:
        there = ", ".join(str(run.attempt) for run in runs) or "none"
        raise NoOutput(f"attempt {attempt} of {name!r} has no output; attempts with output: {there}")
    if info is not None and info.stage is Stage.INVALID:
        raise NoOutput(f"{name!r} has never run: its spec is refused: {plain(info.problem)}")
    say(f"bastion: {name} has no output{'' if info and info.stage is Stage.COMPLETED else ' yet'}")


LOGS = Command(
    summary="Shows a job's output.",
    usage="JOB | --group=NAME [-f] [--worker=N] [--attempt=N] [--since=WHEN] [--tail=N] [--grep=REGEX]",
    details="""The job's stdout goes to stdout, its stderr to stderr. With several hosts each line starts with the
        worker's number, like `[w03]`, and with several slices also with the slice's, like `[w03 2/4]`, unless --worker
        selects one worker. On a terminal each worker has a color; $NO_COLOR turns colors off. Attempts follow one
        another, each under a header line. If output was lost, a line in its place says so.

        With -f the command retries when the bucket does not answer, and omits or repeats no line. The filters apply
        in this order: --since, --grep, --tail. With -f, --since and --grep also apply to new lines. --grep searches
        the first 16 KiB of each line, and fails if one line takes more than 1 s of CPU time.

        A terminal shows the job's colors, and other control characters as escapes, like \\x1b; --raw passes them on. A
        file or pipe gets the output of a single host unchanged. With several hosts, a line that carriage returns
        rewrite (a progress bar) is shown with its latest state: with -f at most every 5 s (with more than five hosts,
        every 1 s for each host), and once when it ends.

        With --group, each job's output follows a line with its name on stderr; the newest 1,000 completed jobs are
        searched.

        Hosts of other jobs may write to the same place of the bucket. What does not prove to be of this job's hosts is
        left out, and a line on stderr says how much; --unproved shows it.

        --output=json prints one JSON object per line of output: attempt, worker, at, stream, line.""",
    examples=(
        "bastion logs -f train-1",
        "bastion logs train-1 --worker=3 --attempt=2",
        "bastion logs -f train-1 --tail=20 --timestamps",
        "bastion logs train-1 --since=2h --grep='loss=nan|Error'",
        "bastion logs --group=sweep-1 --tail=5",
    ),
    operands=(0, 1),
    completes="jobs",
    takes_output=True,
    define=_define,
    run=_run,
)
