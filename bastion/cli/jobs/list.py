"""`bastion list`: the jobs as the daemon last published them, in queue order."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import select
from bastion.cli.jobs.list_columns import columns
from bastion.cli.output import emit_json, plain, say
from bastion.cli.rows import write
from bastion.cli.since import since
from bastion.client.jobs.listing import UNREAD_MAX, JobRow, Listing, listing
from bastion.client.jobs.selection import ENDED, INVALID, SUBMITTED, Selection
from bastion.core import secret_signs
from bastion.core.errors import EXIT_INFRASTRUCTURE
from bastion.core.plurals import count
from bastion.core.status.document import StatusDocument

if TYPE_CHECKING:
    from bastion.client.jobs.client import Client
    from bastion.client.jobs.eta import Estimate
    from bastion.user_config.target import Target

# More than these would bury the jobs.
_ALARMS_SHOWN = 5
_BACKLOGS_SHOWN = 5
_UNREAD_SHOWN = 20
# Of the JSON document.
_FORMAT = 1


def _define(values: flags.FlagValues) -> None:
    select.define(values, "Show")
    flags.DEFINE_boolean("all", False, "Also show completed jobs.", flag_values=values)
    flags.DEFINE_integer(
        "limit", 50, "Maximum number of completed jobs, newest first.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_string(
        "since",
        None,
        "Also show jobs that completed since then: 90s, 10m, 1h30m or 3d ago, or a time like 2026-01-02T03:04:05Z.",
        flag_values=values,
    )
    flags.DEFINE_boolean(
        "eta", False, "Estimate when the waiting jobs start, which takes some seconds.", flag_values=values
    )
    flags.DEFINE_boolean("watch", False, "Show the list again on every change, until Ctrl-C.", flag_values=values)


def _run(call: Invocation) -> int:
    selection = select.selection(call)
    client, target = open_client(call)
    if not selection.is_all and not call.flags.eta:  # an estimate needs them all
        client.want_only(selection.place)
    if call.flags.watch:
        from bastion.cli.jobs.list_watch import watch

        return watch(call, client, lambda most: _show(call, client, target, selection, most=most))
    return _show(call, client, target, selection)


def _show(call: Invocation, client: Client, target: Target, selection: Selection, *, most: int | None = None) -> int:
    """Print the list; `most`: the maximum number of rows."""
    given = call.flags
    started = None if given.since is None else since(given.since, client.clock.now())
    ended = given.all or started is not None or not selection.statuses.isdisjoint(ENDED)
    found = listing(client, selection, completed=given.limit if ended else 0, since=started)
    status = client.status(again=False) if not selection.wants_ended else client.status()
    code = _daemon(client, target, status)
    if call.json:
        emit_json(_document(client, status, found, selection, ended=ended))
        return code
    _tell_problems(status)
    backlog = status is not None and bool(status.backlog)
    rows = _shown(found, backlog=backlog)[:most]
    if rows:
        now = client.clock.now()
        unverified = status is not None and any(row.entry and status.is_unverified(row.entry) for row in rows)
        estimates = _estimates(client, rows) if given.eta else None
        write(columns(now, unverified=unverified, backlog=backlog, estimates=estimates), rows, given.output)
    _tell_rest(call, found, rows, selection, ended=ended)
    return code


def _daemon(client: Client, target: Target, status: StatusDocument | None) -> int:
    if status is None:
        say(f"bastion: no daemon has published a status for {plain(client.root.url)} yet")
        return EXIT_INFRASTRUCTURE
    return EXIT_INFRASTRUCTURE if warn_if_no_daemon(client, target) else 0


def _document(
    client: Client, status: StatusDocument | None, found: Listing, selection: Selection, *, ended: bool
) -> dict[str, Any]:
    published = (status or StatusDocument()).model_dump(mode="json", include={"jobs", "invalid", "backlog", "alarms"})
    if not selection.is_all:
        shown = {row.name for row in found.rows if row.entry is not None}
        refused = {row.name for row in found.rows if row.status == INVALID}
        published["jobs"] = [entry for entry in published["jobs"] if entry["name"] in shown]
        published["invalid"] = [entry for entry in published["invalid"] if entry["name"] in refused]
    document: dict[str, Any] = {"format": _FORMAT, "root": client.root.url, **published, "unread": list(found.unread)}
    if ended:
        results = (row.result for row in found.rows if row.result is not None)
        document["completed"] = [secret_signs.masked_document(result.document) for result in results]
    return document


def _tell_problems(status: StatusDocument | None) -> None:
    if status is None:
        return
    alarms = [" ".join(alarm.split()) for alarm in status.alarms]
    for alarm in alarms[:_ALARMS_SHOWN]:
        say(f"bastion: alarm: {plain(alarm)}")
    if len(alarms) > _ALARMS_SHOWN:
        say(f"bastion: {len(alarms) - _ALARMS_SHOWN} more alarms are not shown; use --output=json to see all")
    for entry in status.backlog[:_BACKLOGS_SHOWN]:
        say(f"bastion: {phrases.backlog(entry)}")
    if len(status.backlog) > _BACKLOGS_SHOWN:
        more = len(status.backlog) - _BACKLOGS_SHOWN
        say(f"bastion: the same for {more} more users; use --output=json to see all")


def _shown(found: Listing, *, backlog: bool) -> list[JobRow]:
    """The rows, with few of the specs beyond a queue limit."""
    if not backlog:
        return list(found.rows)
    unread = [row for row in found.rows if row.status == SUBMITTED]
    hidden = {row.name for row in unread[_UNREAD_SHOWN:]}
    return [row for row in found.rows if row.status != SUBMITTED or row.name not in hidden]


def _estimates(client: Client, rows: Sequence[JobRow]) -> Mapping[str, Estimate]:
    from bastion.client.jobs.eta import estimates

    return estimates(client, [row.entry for row in rows if row.entry is not None])


def _tell_rest(call: Invocation, found: Listing, rows: Sequence[JobRow], selection: Selection, *, ended: bool) -> None:
    """Say what the rows do not show."""
    given = call.flags
    if not rows:
        which = " with these labels" * bool(given.label) + f" in group {given.group}" * bool(given.group)
        which = which or " that match" * (not selection.is_all)
        if ended:
            say(f"no jobs{which}")
        else:
            say(f"no live jobs{which} (use bastion list --all to see completed jobs)")
    elif sys.stdout.isatty() and given.output in ("table", "wide"):
        say(", ".join(f"{number:,} {status}" for status, number in found.totals.items()))
    hidden = sum(row.status == SUBMITTED for row in found.rows) - sum(row.status == SUBMITTED for row in rows)
    if hidden > 0:
        more = "at least " * (len(found.unread) == UNREAD_MAX) + str(hidden)
        say(f"{more} more submitted jobs are not shown")
    if found.unread_left_out:
        say("bastion: specs that the daemon has not accepted yet are left out; bastion list shows them")
    if found.completed > found.searched:
        shown = f"showing {found.searched}" if selection.is_all else f"searched the newest {found.searched}"
        say(f"{shown} of {count(found.completed, 'completed job')}; use --limit={found.completed} to see all")


LIST = Command(
    summary="Shows the jobs: what each one is doing, or why it waits.",
    usage="[PATTERN ...] [--mine] [--all] [--watch] [--output=table|wide|json|csv]",
    details="""The daemon publishes this on every change. Jobs that hold slices come first, then those that wait, in the
        order of the queue (POS). AGE is the time since the job was queued, RUN the time for which it runs. INVALID jobs
        have a spec that the daemon refuses; `bastion why JOB` shows more about any job.

        A PATTERN is a name, or part of one with `*`, `?` and `[...]`; quote it. Several flags select jobs to which all
        of them apply; several values of one flag, separated by commas, jobs to which any applies. Refused specs have
        no project, type, labels or group.

        On a terminal the table fits the width: columns are left out, and long cells end with `…`. In a pipe nothing is
        cut. `--output=csv` has numbers and instants instead of ages.

        Exits with 0 if a daemon is running. Otherwise the command shows what the last daemon published, says so on
        stderr, and exits with 75.""",
    examples=(
        "bastion list",
        "bastion list --mine --watch",
        "bastion list 'train-*' --status=running,queued",
        "bastion list --all --limit=200",
        "bastion list --label=team=vision",
        "bastion list --since=1d --status=failed --output=csv",
        "bastion list --output=json",
    ),
    operands=(0, None),
    completes="live",
    takes_rows=True,
    define=_define,
    run=_run,
)
