"""`bastion cancel JOB...`: request the end of jobs."""

from __future__ import annotations

from dataclasses import replace

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.confirm import confirm
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import select
from bastion.cli.jobs.waiting import tell_end, wait_for
from bastion.cli.output import emit_json, plain, say
from bastion.client import Cancelled, Client, FollowOptions
from bastion.client.jobs.groups import cancel_all, cancel_group
from bastion.client.jobs.listing import listing
from bastion.client.jobs.selection import Selection
from bastion.core.errors import EXIT_DETACHED, Refused
from bastion.core.plurals import count
from bastion.user_config.target import Target
from bastion.user_config.user import default_user

# The requests for so many take long enough to say what is going on.
_TELL_FROM = 200
# Of the jobs that flags and patterns select.
_SHOWN = 20


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("wait", False, "Wait until the jobs have ended.", flag_values=values)
    flags.DEFINE_boolean("all", False, "Cancel all your live jobs.", flag_values=values)
    flags.DEFINE_boolean("yes", False, "Cancel without asking.", flag_values=values)
    select.define(values, "Cancel")
    flags.DEFINE_string(
        "user_id", None, "With --group: whose jobs to cancel. Default: your login name.", flag_values=values
    )


def _run(call: Invocation) -> int:
    given = call.flags
    if given.user_id is not None and given.group is None:
        raise Refused("--user_id requires --group")
    selection = select.selection(call)
    if given.all and not selection.is_all and selection != replace(selection, patterns=()):
        raise Refused("--all takes no names; leave it out to cancel jobs by name or pattern")
    by_flags = replace(selection, patterns=()) != Selection()
    patterns = any(char in name for name in call.operands for char in "*?[")
    if not (call.operands or by_flags or given.all):
        raise Refused("name the jobs to cancel, a pattern of names, --all, or flags that select jobs")
    client, target = open_client(call)
    user = default_user()
    if selection == Selection(group=given.group) and not given.all:
        return _cancel_group(call, client, target, given.group, user)
    if patterns or by_flags or given.all:
        return _cancel_selected(call, client, target, selection, user)
    for name in call.operands:
        client.check_name(name)  # check every name before cancelling any job
    code = 0
    cancelled: list[Cancelled] = []
    for name in dict.fromkeys(call.operands):
        try:
            done = client.cancel(name, by=user)
        except Refused as error:
            say(f"bastion: {plain(error)}")
            code = error.exit_code
            continue
        cancelled.append(done)
        say(_outcome_text(done))
    return _follow_up(call, client, target, cancelled) or code


def _cancel_selected(call: Invocation, client: Client, target: Target, selection: Selection, user: str) -> int:
    """Show which jobs the flags and patterns select, ask, and cancel them."""
    if not (selection.users or selection.projects):
        selection = replace(selection, users=frozenset({user}))
    client.want_only(selection.place)
    rows = [row for row in listing(client, selection, specs=None).rows if row.status != "invalid"]
    if not rows:
        say(f"bastion: no live jobs match{_of(selection)}; see bastion list")
        return _follow_up(call, client, target, [])
    for row in rows[:_SHOWN]:
        say(f"  {row.name}  {row.status}  {plain(row.user_id)}")
    if len(rows) > _SHOWN:
        say(f"  and {len(rows) - _SHOWN} more")
    if not call.flags.yes:
        confirm(f"cancel {count(len(rows), 'job')}{_of(selection)}")
    cancelled = cancel_all(client, [row.name for row in rows], by=user)
    say(f"cancelling {count(len(cancelled), 'job')}")
    return _follow_up(call, client, target, cancelled)


def _of(selection: Selection) -> str:
    users, projects = sorted(selection.users), sorted(selection.projects)
    text = f" of {', '.join(users)}" if users else ""
    return plain(text + (f" in {', '.join(projects)}" if projects else ""))


def _cancel_group(call: Invocation, client: Client, target: Target, group: str, user: str) -> int:
    whose = call.flags.user_id or user

    def begin(jobs: int) -> None:
        if jobs >= _TELL_FROM:
            say(f"requesting the end of {jobs} jobs; if this is interrupted, run it again")

    cancelled = cancel_group(client, group, whose, by=user, begin=begin)
    if cancelled:
        say(f"cancelling {count(len(cancelled), 'job')} of group {group}")
    else:
        say(f"bastion: user {plain(whose)} has no live jobs in group {group}; see bastion list --group={group}")
    return _follow_up(call, client, target, cancelled)


def _follow_up(call: Invocation, client: Client, target: Target, cancelled: list[Cancelled]) -> int:
    """Wait if asked to, and print what was cancelled; return the exit code of the wait."""
    code = 0
    if cancelled and not call.flags.wait:
        warn_if_no_daemon(client, target)
    if call.flags.wait:
        code = _wait(client, target, cancelled)
    if call.json:
        emit_json([{"name": c.name, "uid": c.uid, "already": c.already, "removed": c.removed} for c in cancelled])
    return code


def _outcome_text(done: Cancelled) -> str:
    if done.removed:
        return f"removed the refused spec of {done.name}"
    if done.submitter:
        return (
            f"requested the end of {done.name}, a job of {plain(done.submitter)}; it ends if you are an admin: "
            f"bastion history {done.name}"
        )
    return f"{done.name} is already being cancelled" if done.already else f"cancelling {done.name}"


def _wait(client: Client, target: Target, cancelled: list[Cancelled]) -> int:
    for done in cancelled:
        if done.uid and not done.removed:
            waited = wait_for(
                client,
                target,
                done.name,
                done.uid,
                generation=done.generation,
                what=FollowOptions(logs=False),
                printer=None,
                hint=False,
            )
            if waited.ended is None:
                say("detached; the jobs are still being cancelled")
                return EXIT_DETACHED
            tell_end(done.name, waited.ended)
    return 0


CANCEL = Command(
    summary="Cancels waiting and running jobs.",
    usage="JOB... | PATTERN... | --all | [--user=...] [--project=...] [--status=...] [--group=NAME] [--wait] [--yes]",
    details="""A running job gets SIGTERM and a grace period. The request applies at the next poll; --wait waits until
        the jobs have ended. If the daemon refuses a job's spec (INVALID), the spec is deleted.

        A pattern of names (quote its `*`), --all and the flags of `bastion list` select live jobs, also those that are
        not accepted yet. They are shown, and cancelled after you agree, or with --yes. Only your own are selected,
        unless --user or --project names others. --group alone cancels your own jobs of a group without asking.

        Exits with 0 if all jobs are being cancelled, with 2 if nobody agreed, and with 64 if one does not exist or has
        already ended.""",
    examples=(
        "bastion cancel train-1",
        "bastion cancel --wait train-1 train-2",
        "bastion cancel 'sweep-*' --status=queued",
        "bastion cancel --all --yes",
        "bastion cancel --group=sweep-1",
    ),
    operands=(0, None),
    completes="live",
    takes_output=True,
    define=_define,
    run=_run,
)
