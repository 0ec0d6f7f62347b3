"""The screen of `bastion show`: a job's state, spec, attempts, last lines and outputs as lines of text."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator

from bastion.cli import phrases
from bastion.cli.jobs import goodput, why_lines, why_places
from bastion.cli.output import plain, table
from bastion.client import Client, JobInfo, Stage
from bastion.client.jobs.details import AttemptRow, Details
from bastion.core import disk_limit, secret_signs
from bastion.core.instants import duration, exact_duration, to_rfc3339
from bastion.core.model.job_spec import JobSpec
from bastion.core.status.document import Phase

# More would push the rest off the screen; --output=json has all.
_ATTEMPTS_SHOWN = 6
_NODES_SHOWN = 4
_VARIABLES_SHOWN = 12
# Of the command and of a variable's value.
_COMMAND_CHARS = 300
_VALUE_CHARS = 40
# A terminal without a width, and the least that wrapped text needs.
_WIDTH_MIN = 20


def write(client: Client, found: Details, target_suffix: str) -> None:
    """Print the screen on stdout: on a terminal it fits the width, in a pipe no line is cut."""
    width = max(_WIDTH_MIN, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    for line in lines(client, found, target_suffix):
        for shown in _fitted(line, width):
            print(shown)


def _fitted(line: str, width: int | None) -> list[str]:
    from rich.cells import cell_len, set_cell_size

    if width is None or cell_len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    if indent >= 4:  # a row of a table, or a line of output
        return [set_cell_size(line, width - 1).rstrip() + "…"]
    return textwrap.wrap(line, width, subsequent_indent=" " * (indent + 2), break_on_hyphens=False) or [line]


def lines(client: Client, found: Details, suffix: str) -> Iterator[str]:
    info, now = found.info, client.clock.now()
    kept_out = client.kept_out(info)
    yield why_lines.state(info, now, kept_out=kept_out)
    if info.result is not None and (usual := why_lines.meaning(info.result)):
        yield f"  exit code {info.result.attempts[-1].exit_code}: {usual}"
    if kept_out is not None:
        yield f"  {phrases.backlog(kept_out)}"
    if info.stage is not Stage.INVALID and info.problem:
        yield f"  its new spec is refused: {plain(info.problem)}"
    if info.entry is not None:
        yield from why_lines.platform(info.entry, now)
        yield from why_lines.place_in_queue(info, info.entry, now)
        yield from why_places.without_quota(client, info.entry)
    yield from _spec(found, now)
    yield from _hosts(found)
    yield from goodput.lines(info, now)
    yield from _attempts(found.attempts, now)
    if found.last is not None and found.last.lines:
        yield from why_lines.last(found.last)
    yield from _outputs(found)
    yield from _next(info, found, suffix)


def _spec(found: Details, now: float) -> Iterator[str]:
    info, spec = found.info, found.spec
    if spec is None:
        if info.stage is not Stage.INVALID:
            yield "  its spec is not known: no daemon of this bastion's kind has kept it"
        return
    replicas = spec.runner.num_replicas if spec.runner is not None else None
    needs = phrases.resources(spec.instance_type, replicas, spec.resources)
    entry = info.entry
    queued = entry.queued_at if entry is not None else info.result.queued_at if info.result is not None else None
    since = f", queued {phrases.age(queued, now)} ago" if queued is not None else ""
    yield (
        f"  {'no slice' if needs == '-' else needs}; project {plain(spec.project_id)}, user {plain(spec.user_id)}, "
        f"priority {spec.priority}{since}"
    )
    yield f"  command  {_cut(spec.command, _COMMAND_CHARS)}"
    if spec.cleanup_command:
        yield f"  cleanup  {_cut(spec.cleanup_command, _COMMAND_CHARS)}"
    if spec.runner is not None and spec.runner.image:
        yield f"  image    {plain(spec.runner.image)}"
    if spec.as_root:
        yield "  user     root on its hosts (--root_user)"
    if spec.env_vars:
        shown = list(secret_signs.masked(spec.env_vars).items())
        more = f" and {len(shown) - _VARIABLES_SHOWN} more" if len(shown) > _VARIABLES_SHOWN else ""
        pairs = (f"{plain(name)}={_cut(value, _VALUE_CHARS)}" for name, value in shown[:_VARIABLES_SHOWN])
        yield f"  env      {' '.join(pairs)}{more}"
    if spec.runner is not None and spec.runner.secrets:
        yield f"  secrets  {' '.join(plain(name) for name in sorted(spec.runner.secrets))}"
    if limits := ", ".join(_limits(spec)):
        yield f"  limits   {limits}"
    if spec.labels:
        yield f"  labels   {phrases.labels(spec.labels)}"
    if spec.limits.group:
        yield f"  group    {plain(spec.limits.group)}"
    if found.info.uid:
        yield f"  uid      {found.info.uid}"


def _limits(spec: JobSpec) -> Iterator[str]:
    runner = spec.runner
    pairs = [("max_run", spec.limits.max_run_seconds), ("after_at_most", spec.limits.after_at_most_seconds)]
    if runner is not None:
        pairs += [("max_wait", runner.max_wait_seconds), ("stuck_after", runner.stuck_after_seconds)]
    yield from (f"{name} {exact_duration(seconds)}" for name, seconds in pairs if seconds is not None)
    if runner is not None and runner.max_tries > 1:
        yield f"max_tries {runner.max_tries}"


def _cut(text: str, most: int) -> str:
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _hosts(found: Details) -> Iterator[str]:
    entry = found.info.entry
    up = f" ({entry.hosts_up or 0} of {entry.hosts} hosts up)" if entry is not None and entry.hosts else ""
    if found.nodes:
        more = f" and {len(found.nodes) - _NODES_SHOWN} more" if len(found.nodes) > _NODES_SHOWN else ""
        yield f"  nodes    {', '.join(map(plain, found.nodes[:_NODES_SHOWN]))}{more}{up}"
    elif found.host:
        yield f"  host     {plain(found.host)}, the bastion's own"


def _attempts(attempts: Iterable[AttemptRow], now: float) -> Iterator[str]:
    every = list(attempts)
    if not every:
        return
    shown = every[-_ATTEMPTS_SHOWN:]
    hidden = len(every) - len(shown)
    yield f"  attempts{f' ({hidden} earlier ones are in --output=json)' if hidden else ''}:"
    rows = [_attempt_row(row, now) for row in shown]
    yield from (
        f"    {line}"
        for line in table(("#", "TIER", "ZONE", "START (UTC)", "RAN", "TRIES", "END"), rows).split("\n")[:-1]
    )


def _attempt_row(row: AttemptRow, now: float) -> list[str]:
    until = now if row.ended_at is None else row.ended_at
    ended = f"{phrases.age(row.ended_at, now)} ago, {phrases.ending(row.cause, row.message)}" if row.cause else "-"
    return [
        str(row.number),
        "-" if row.tier is None else str(row.tier),
        row.zone or "-",
        "-" if row.started_at is None else to_rfc3339(row.started_at)[5:16].replace("T", " "),
        "-" if row.running_since is None else duration(max(0.0, until - row.running_since)),
        str(len(row.tries) + 1),
        ended,
    ]


def _outputs(found: Details) -> Iterator[str]:
    if found.outputs is None:
        return
    much = ""
    if found.outputs.files is not None and found.outputs.size_bytes is not None:
        size = disk_limit.shown(found.outputs.size_bytes)
        much = f" (worker 0: {phrases.count(found.outputs.files, 'file')}, {size})"
    yield f"  outputs  {plain(found.outputs.url)}{much}"


def _next(info: JobInfo, found: Details, suffix: str) -> Iterator[str]:
    name = f"{plain(info.name)}{suffix}"
    commands: list[tuple[str, str]] = []
    if info.stage is Stage.INVALID:
        commands = [(f"bastion cancel {name}", "delete the refused spec")]
    elif info.stage is Stage.COMPLETED:
        commands = [(f"bastion logs {name}", "all of its output")] if found.attempts else []
        commands.append((f"bastion why {name}", "how it ended"))
        commands.append((f"bastion history {name}", "what happened to it"))
    else:
        waits = info.entry is None or info.entry.phase == Phase.QUEUED
        commands = (
            [(f"bastion why {name}", "when it may start")] if waits else [(f"bastion logs -f {name}", "follow it")]
        )
        commands += [(f"bastion wait {name}", "wait for its end"), (f"bastion cancel {name}", "cancel it")]
    width = max(len(command) for command, _ in commands)
    yield "  next:"
    yield from (f"    {command.ljust(width)}  {what}" for command, what in commands)
