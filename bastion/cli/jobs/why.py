"""`bastion why JOB`: why a job waits, with the arithmetic; what it is doing; or how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import goodput, why_eta, why_lines, why_places
from bastion.cli.output import emit_json, plain
from bastion.client import Client, JobInfo, PastAttempt, Result, Stage
from bastion.client.jobs.last_lines import LastLines, failed_by_command, last_lines
from bastion.core.errors import InvalidDocument
from bastion.core.instants import to_rfc3339
from bastion.core.model.clusters import where
from bastion.core.status.document import JobEntry, Phase

if TYPE_CHECKING:
    from bastion.client.jobs.eta import Estimate

# Of the worker that failed.
_LAST_LINES = 10


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean(
        "eta",
        True,
        "Estimate when a waiting job starts; reads the results of up to 200 completed jobs. --noeta skips it.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    client, target = open_client(call)
    info = client.require(call.operands[0])
    if info.stage is not Stage.COMPLETED and not call.json:
        warn_if_no_daemon(client, target)
    estimate = why_eta.estimate(client, info) if call.flags.eta else None
    last = None
    if info.result is not None and failed_by_command(info.result):
        last = last_lines(client, info, _LAST_LINES, worker=info.result.failed_worker)
    if call.json:
        emit_json(_document(client, info, estimate, last))
        return 0
    for line in _lines(client, info, last):
        print(line)
    if estimate is not None:
        print(why_eta.line(estimate, client.clock.now()))
    return 0


def _lines(client: Client, info: JobInfo, last: LastLines | None) -> Iterator[str]:
    now = client.clock.now()
    kept_out = client.kept_out(info)
    yield why_lines.state(info, now, kept_out=kept_out)
    if info.stage is Stage.COMPLETED and info.result is not None:
        yield from _ended(plain(info.name), info, info.result, now)
        yield from goodput.lines(info, now)
        if last is not None and last.lines:
            yield from why_lines.last(last)
        return
    if info.stage is Stage.INVALID:
        yield f"correct the spec and upload it again, or delete it: bastion cancel {plain(info.name)}"
        return
    if info.stage is Stage.SUBMITTED:
        if kept_out is not None:
            yield f"  {phrases.backlog(kept_out)}"
        yield from _alarms(client)
        return
    if info.entry is not None:
        published = client.status(again=False)
        unverified = published is not None and published.is_unverified(info.entry)
        yield from _live(info, info.entry, now, unverified=unverified)
        yield from why_places.without_quota(client, info.entry)
    if info.problem:
        yield f"  its new spec is refused: {plain(info.problem)}"
    if info.record is not None:
        yield from _attempts(map(PastAttempt.of, info.record.attempts), now)
    yield from goodput.lines(info, now)
    yield from _alarms(client)


def _live(info: JobInfo, entry: JobEntry, now: float, *, unverified: bool) -> Iterator[str]:
    yield (
        f"  needs {phrases.needs(entry)}; project {plain(entry.project_id)}, user {plain(entry.user_id)}"
        f"{' (unverified)' if unverified else ''}, priority {entry.priority}"
    )
    if info.image:
        yield f"  image {plain(info.image)}"
    if info.runs_as_root:
        yield "  runs as root on its hosts (--root_user)"
    yield from _labels(info)
    yield from why_lines.platform(entry, now)
    if entry.phase != Phase.QUEUED and entry.started_at is not None:
        yield f"  attempt {entry.attempt} started {phrases.age(entry.started_at, now)} ago"
    if entry.phase == Phase.STOPPING and entry.host_problem:
        yield f"  {plain(entry.host_problem)}"
    if entry.running_since is not None:
        saved = entry.checkpointed_at
        known = f", last checkpoint {phrases.age(saved, now)} ago" if saved is not None else ""
        yield f"  running for {phrases.age(entry.running_since, now)}{known}"
    yield from why_lines.place_in_queue(info, entry, now)


def _labels(info: JobInfo) -> Iterator[str]:
    if info.labels:
        yield f"  labels {phrases.labels(info.labels)}"


def _ended(name: str, info: JobInfo, result: Result, now: float) -> Iterator[str]:
    if usual := why_lines.meaning(result):
        yield f"  exit code {result.attempts[-1].exit_code}: {usual}"
    if result.failed_worker is not None:
        yield f"  first worker to fail: {result.failed_worker}"
    if result.by and result.by not in result.message:
        yield f"  by {plain(result.by)}"
    if result.queued_at is not None:
        yield f"  queued {phrases.age(result.queued_at, now)} ago ({to_rfc3339(result.queued_at)})"
    yield from _labels(info)
    yield from _attempts(result.attempts, now)
    if result.cleanup.outcome == "failed":
        tries = f" {result.cleanup.tries} times" if result.cleanup.tries > 1 else ""
        yield f"  its cleanup command failed{tries}: {plain(result.cleanup.message)} (bastion logs --attempt=0 {name})"


def _attempts(attempts: Iterable[PastAttempt], now: float) -> Iterator[str]:
    for attempt in attempts:
        saved = attempt.checkpointed_at
        known = f"; last checkpoint {phrases.age(saved, now)} ago" if saved is not None else ""
        for each in attempt.tries:
            how = f"worker {each.failed_worker} exited with code {each.exit_code}"
            yield f"  attempt {attempt.number}, try {each.number}: {'stuck, restarted in place' if each.stuck else how}"
        yield (
            f"  attempt {attempt.number}{plain(where(attempt.zone))} ended {phrases.age(attempt.ended_at, now)} ago, "
            f"{phrases.ending(attempt.cause, attempt.message)}{known}"
        )


def _alarms(client: Client) -> Iterator[str]:
    try:
        status = client.status(again=False)
    except InvalidDocument as error:
        yield f"  alarm: {plain(error)}"
        return
    for alarm in status.alarms if status is not None else ():
        yield f"  alarm: {plain(alarm)}"


def _document(client: Client, info: JobInfo, estimate: Estimate | None, last: LastLines | None) -> dict[str, Any]:
    result = info.result.document.get("result") if info.result else None
    record = info.record
    return {
        "name": info.name,
        "uid": info.uid or None,
        "stage": info.stage.value,
        "status": info.status.value if info.status else None,
        "reason": why_lines.headline(client, info),
        "labels": dict(info.labels),
        "job": info.entry.model_dump(mode="json") if info.entry is not None else None,
        "attempts": [attempt.model_dump(mode="json") for attempt in record.attempts] if record else None,
        "eta": why_eta.document(estimate),
        "goodput": goodput.document(info, client.clock.now()),
        "problem": info.problem or None,
        "result": result,
        "last_lines": why_lines.line_documents(last),
        "at": to_rfc3339(client.clock.now()),
    }


WHY = Command(
    summary="Shows why a job waits, with the arithmetic; what it is doing; or how it ended.",
    usage="JOB [--noeta] [--output=json]",
    details="""A waiting job has one headline reason: what it needs and what is free, since when, which jobs hold what
        it waits for, and what would let it start. Earlier attempts are shown with their cause, and evictions with the
        job that needed the capacity.

        The estimated start comes from running the scheduler forward: the job starts by p50 in half of the simulations,
        by p90 in nine of ten. Durations come from the owners (bastion launch --expected_duration) or from similar
        completed jobs; without them the start is unknown. The estimate ignores jobs submitted later, pool changes and
        lost nodes. Where Kueue decides, order and ETA are Kueue's: the command shows what Kueue says of the job's
        Workload, and no estimate. In the JSON, eta holds p10, p50 and p90 as times, or null with a why; reason is null
        for a job that does not wait.

        Of a job whose command failed, the command says what the exit code or the signal usually means, unless the host
        or the cluster says it, and shows the last ten lines of the worker that failed first.""",
    examples=("bastion why train-1",),
    operands=(1, 1),
    completes="jobs",
    takes_output=True,
    define=_define,
    run=_run,
)
