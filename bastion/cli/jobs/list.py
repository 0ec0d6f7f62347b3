"""`bastion list`: the jobs as the daemon last published them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs.after import check_group, define_group
from bastion.cli.jobs.command_line import wanted_labels
from bastion.cli.output import emit_json, plain, say, table
from bastion.client import Result
from bastion.core import limits, secret_signs
from bastion.core.errors import EXIT_INFRASTRUCTURE
from bastion.core.model.labels import match
from bastion.core.status.document import InvalidEntry, JobEntry, StatusDocument

_HEADER = ("NAME", "STATUS", "PROJECT", "USER", "RESOURCES", "AGE", "REASON/HOSTS")


# More than these would bury the jobs.
_ALARMS_SHOWN = 5
_BACKLOGS_SHOWN = 5
# There may be many specs beyond a queue limit, and each page of their names costs a request.
_UNREAD_MAX = 1000
_UNREAD_SHOWN = 20


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("all", False, "Also show completed jobs.", flag_values=values)
    flags.DEFINE_integer(
        "limit", 50, "Maximum number of completed jobs, newest first.", lower_bound=1, flag_values=values
    )
    flags.DEFINE_multi_string(
        "label",
        [],
        "Show only jobs with this label: KEY=VALUE, or KEY for any value; repeat it to require several.",
        flag_values=values,
    )
    define_group(values, "Show only jobs of this group (bastion launch --group).")


def _run(call: Invocation) -> int:
    wanted, group = wanted_labels(call.flags.label), call.flags.group
    check_group(group)
    filtered = bool(wanted) or group is not None
    client, target = open_client(call)
    status = client.status()
    backlog = client.backlog(again=False)
    # The labels and groups of specs that are not accepted are unknown.
    unread = [] if filtered else client.unread(again=False, most=_UNREAD_MAX if backlog else None)
    results, number = client.completed(limit=call.flags.limit) if call.flags.all else ([], 0)
    if status is None:
        say(f"bastion: no daemon has published a status for {plain(client.root.url)} yet")
        code = EXIT_INFRASTRUCTURE
    else:
        code = EXIT_INFRASTRUCTURE if warn_if_no_daemon(client, target) else 0
    results_read = len(results)
    results = [each for each in results if match(each.labels, wanted) and group in (None, each.group)]
    live = {
        name: entry
        for name, entry in client.entries(again=False).items()
        if match(entry.labels or {}, wanted) and group in (None, entry.group)
    }
    invalid = status.invalid if status is not None and not filtered else ()
    alarms = [" ".join(alarm.split()) for alarm in status.alarms] if status is not None else []
    for alarm in [] if call.json else alarms[:_ALARMS_SHOWN]:
        say(f"bastion: alarm: {plain(alarm)}")
    if len(alarms) > _ALARMS_SHOWN and not call.json:
        say(f"bastion: {len(alarms) - _ALARMS_SHOWN} more alarms are not shown; use --output=json to see all")
    for entry in [] if call.json else backlog[:_BACKLOGS_SHOWN]:
        say(f"bastion: {phrases.backlog(entry)}")
    if len(backlog) > _BACKLOGS_SHOWN and not call.json:
        say(f"bastion: the same for {len(backlog) - _BACKLOGS_SHOWN} more users; use --output=json to see all")
    if call.json:
        published = (status or StatusDocument()).model_dump(
            mode="json", include={"jobs", "invalid", "backlog", "alarms"}
        )
        if filtered:
            published["jobs"] = [entry for entry in published["jobs"] if entry["name"] in live]
            published["invalid"] = []
        document: dict[str, Any] = {"root": client.root.url, **published, "unread": unread}
        if call.flags.all:
            document["completed"] = [secret_signs.masked_document(result.document) for result in results]
        emit_json(document)
        return code
    now = client.clock.now()
    rows = [_live(entry, now) for entry in live.values()]
    # Nothing but the specs says whose jobs these are.
    unverified = status is not None and any(map(status.is_unverified, live.values()))
    detail = "waiting for the scheduler" + " or over a queue limit" * bool(backlog)
    shown = unread[:_UNREAD_SHOWN] if backlog else unread
    rows += [(name, "submitted", "-", "-", "-", "-", detail) for name in shown]
    rows += [_invalid(entry) for entry in invalid if entry.name not in live]
    rows += [_completed(result, now) for result in results]
    if rows:
        header = ["USER (UNVERIFIED)" if unverified and text == "USER" else text for text in _HEADER]
        print(table(header, rows), end="")
    else:
        which = f" in group {group}" * (group is not None) + " with these labels" * bool(wanted)
        say(
            f"no jobs{which}"
            if call.flags.all
            else f"no live jobs{which} (use bastion list --all to see completed jobs)"
        )
    if len(unread) > len(shown):
        more = "at least " * (len(unread) == _UNREAD_MAX) + str(len(unread) - len(shown))
        say(f"{more} more submitted jobs are not shown")
    if number > results_read:
        shown_of = f"searched the newest {results_read}" if filtered else f"showing {results_read}"
        say(f"{shown_of} of {number} completed jobs; use --limit={number} to see all")
    return code


def _live(entry: JobEntry, now: float) -> Sequence[str]:
    phase = entry.phase
    text = phrases.progress(entry, now)
    detail = text.removeprefix("ending" if phase == "stopping" else phase).removeprefix(phase).removeprefix(":").strip()
    if entry.problem:
        detail = f"{detail}; {entry.problem}" if detail else entry.problem
    return (
        entry.name,
        phase,
        entry.project_id,
        entry.user_id,
        phrases.resources(entry.instance_type, entry.num_replicas, entry.resources),
        phrases.age(entry.queued_at, now),
        detail or "-",
    )


def _invalid(entry: InvalidEntry) -> Sequence[str]:
    # No job has a longer name; anybody can write one, and it would set the width of the column for all.
    shown = entry.name if len(entry.name) <= limits.NAME_MAX_CHARS else f"{entry.name[: limits.NAME_MAX_CHARS]}..."
    return (shown, "INVALID", "-", entry.user or "-", "-", "-", entry.problem)


def _completed(result: Result, now: float) -> Sequence[str]:
    """The row of a completed job, whose spec another implementation may have written."""
    fields, runner = _table(result.document, "metadata"), _table(result.document, "runner")
    return (
        result.name,
        result.outcome,
        str(fields.get("project_id", "-")),
        str(fields.get("user_id", "-")),
        phrases.resources(runner.get("instance_type"), runner.get("num_replicas"), fields.get("resources")),
        phrases.age(result.queued_at, now),
        result.message or "-",
    )


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


LIST = Command(
    summary="Shows the jobs: what each one is doing, or why it waits.",
    usage="[--all] [--label=KEY[=VALUE] ...] [--group=NAME] [--output=json]",
    details="""The daemon publishes this on every change. AGE is the time since the job was queued. INVALID jobs have a
        spec that the daemon refuses; `bastion why JOB` shows more about any job.

        With --label or --group, jobs that are not accepted yet or refused are left out, because their labels and groups
        are not known.

        Exits with 0 if a daemon is running. Otherwise the command shows what the last daemon published, says so on
        stderr, and exits with 75.""",
    examples=(
        "bastion list",
        "bastion list --all --limit=200",
        "bastion list --label=team=vision",
        "bastion list --all --group=sweep-1",
        "bastion list --output=json",
    ),
    takes_output=True,
    define=_define,
    run=_run,
)
