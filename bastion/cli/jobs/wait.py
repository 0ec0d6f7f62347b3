"""`bastion wait JOB...`: wait until jobs have ended; the exit code says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs.after import check_group, define_group
from bastion.cli.jobs.waiting import tell_end
from bastion.cli.output import emit_json, plain, say
from bastion.cli.since import ago
from bastion.client import Client, Ended
from bastion.client.jobs.wait import Awaited, JobEnded, ended_with, find, wait
from bastion.core.errors import EXIT_DETACHED, EXIT_TIMEOUT, Refused
from bastion.core.plurals import count

# Of a group's completed jobs, those among so many of the newest count.
_COMPLETED_MAX = 1000
# Of the JSON document.
_FORMAT = 1
# Names of jobs in one message.
_NAMED_MAX = 5


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "timeout", None, "Wait no longer than this: 90s, 10m, 1h30m, 3d. Default: no limit.", flag_values=values
    )
    flags.DEFINE_boolean("any", False, "Wait only until one of the jobs has ended.", flag_values=values)
    define_group(values, "Wait for all jobs of this group (bastion launch --group).")


def _run(call: Invocation) -> int:
    given = call.flags
    if bool(call.operands) == (given.group is not None):
        raise Refused("name the jobs to wait for, or a group of jobs with --group=NAME")
    check_group(given.group)
    seconds = None if given.timeout is None else ago(given.timeout)
    if given.timeout is not None and seconds is None:
        raise Refused(f"--timeout={plain(given.timeout)} is not a valid duration; use 90s, 10m, 1h30m or 3d")
    client, target = open_client(call)
    begun = client.clock.monotonic()
    jobs = _of_group(client, given.group) if given.group is not None else _named(client, call.operands)
    if any(job.ended is None for job in jobs):
        warn_if_no_daemon(client, target)
    ended: dict[str, Ended] = {}
    detached = False
    try:
        for event in wait(client, jobs, until=None if seconds is None else begun + seconds):
            if not isinstance(event, JobEnded):
                say(f"bastion: {plain(event.text)}")
                continue
            ended[event.name] = event.ended
            tell_end(event.name, event.ended)
            if given.any:
                break
    except KeyboardInterrupt:
        detached = True
        say(f"detached; {_names(jobs, ended)} not affected")
    code = _code(jobs, ended, detached=detached, enough=bool(given.any and ended))
    if code == EXIT_TIMEOUT and len(ended) < len(jobs) and not detached:
        say(f"bastion: after {given.timeout}, {_names(jobs, ended)} still waiting or running")
    if call.json:
        emit_json(_document(jobs, ended, code))
    return code


def _code(jobs: Sequence[Awaited], ended: Mapping[str, Ended], *, detached: bool, enough: bool) -> int:
    if detached:
        return EXIT_DETACHED
    if len(ended) < len(jobs) and not enough:
        return EXIT_TIMEOUT
    return next((ended[job.name].exit_code for job in jobs if job.name in ended and ended[job.name].exit_code), 0)


def _named(client: Client, names: Sequence[str]) -> list[Awaited]:
    for name in names:
        client.check_name(name)
    return find(client, list(dict.fromkeys(names)))


def _of_group(client: Client, group: str) -> list[Awaited]:
    from bastion.client.jobs.groups import members

    found = members(client, group, completed=_COMPLETED_MAX)
    if not found:
        raise Refused(f"no job of group {group} among the live jobs and the newest {_COMPLETED_MAX} completed ones")
    # Of namesakes, the newest: the last one in the order of the queue.
    newest = {member.name: member for member in found}
    unaccepted = {job.name: job for job in find(client, [m.name for m in newest.values() if not m.uid])}
    return [
        unaccepted.get(name)
        or Awaited(name=name, uid=member.uid, ended=ended_with(member.result) if member.result else None)
        for name, member in newest.items()
    ]


def _names(jobs: Sequence[Awaited], ended: Mapping[str, Ended]) -> str:
    left = [job.name for job in jobs if job.name not in ended]
    if len(left) > _NAMED_MAX:
        return f"{count(len(left), 'job')} are"
    return f"{', '.join(left)} {'is' if len(left) == 1 else 'are'}"


def _document(jobs: Sequence[Awaited], ended: Mapping[str, Ended], code: int) -> dict[str, Any]:
    def job(each: Awaited) -> dict[str, Any]:
        end = ended.get(each.name)
        result = end.result if end is not None else None
        return {
            "name": each.name,
            "uid": each.uid or None,
            "outcome": None if end is None else result.outcome if result is not None else "refused",
            "exit_code": end.exit_code if end is not None else None,
            "message": end.message if end is not None else None,
            "failed_worker": result.failed_worker if result is not None else None,
        }

    return {"format": _FORMAT, "exit_code": code, "jobs": [job(each) for each in jobs]}


WAIT = Command(
    summary="Waits until jobs have ended, and exits as they did.",
    usage="JOB... | --group=NAME [--timeout=DURATION] [--any] [--output=json]",
    details="""Each job's end is a line on stderr. Exits with 0 if all jobs succeeded; otherwise with the exit code of
        the first job, in the order given, that did not: its command's own, 64 if it was refused, 75 after an
        infrastructure failure, 143 if it was cancelled. With --any, the first job to end decides.

        Also exits with 64, at once, if there is no job of one of the names; with 124 if --timeout has passed; with 130
        after Ctrl-C, which detaches and leaves the jobs running. A command that exits with 124 itself looks like a
        timeout; the JSON tells them apart.

        One poll serves all jobs, so a thousand cost as much as one. A job that has ended before counts, too; of a
        group, those among the newest 1,000 completed jobs.

        --output=json prints one document at the end, with format 1: exit_code, and for each of jobs its name, uid,
        outcome (null: it has not ended), exit_code, message and failed_worker.""",
    examples=(
        "bastion wait train-1",
        "bastion wait train-1 train-2 --timeout=6h && ./evaluate.sh",
        "bastion wait --group=sweep-1 --any",
    ),
    operands=(0, None),
    completes="live",
    takes_output=True,
    define=_define,
    run=_run,
)
