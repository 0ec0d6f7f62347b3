"""`bastion why JOB`: why a job waits, with the arithmetic; what it is doing; or how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.output import emit_json, plain
from bastion.client import Client, JobInfo, PastAttempt, Result, Stage
from bastion.core.errors import InvalidDocument
from bastion.core.instants import to_rfc3339
from bastion.core.model.clusters import shown, where
from bastion.core.model.lifecycle import Status
from bastion.core.status.document import CapacityWait, JobEntry, Phase, WaitReason
from scheduler import ReasonCode

if TYPE_CHECKING:
    from bastion.client.jobs.eta import Estimate


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
    estimate = _estimate(client, info) if call.flags.eta else None
    if call.json:
        emit_json(_document(client, info, estimate))
        return 0
    for line in _lines(client, info):
        print(line)
    if estimate is not None:
        print(_eta_line(estimate, client.clock.now()))
    return 0


def _estimate(client: Client, info: JobInfo) -> Estimate | None:
    """Estimate the start; None if the job is not queued."""
    if info.stage is not Stage.KNOWN or info.entry is None or info.entry.phase != Phase.QUEUED:
        return None
    from bastion.client.jobs.eta import estimate

    return estimate(client, info)


def _eta_line(estimate: Estimate, now: float) -> str:
    eta = estimate.eta
    if eta.p50 is None:
        return f"  estimated start: unknown: {plain(eta.why)}"
    soon = _from_now(eta.p50 - now)
    if eta.p90 is None:
        times = f"{soon} (p50; p90 unknown: {plain(eta.why)})"
    elif (late := _from_now(eta.p90 - now)) == soon:
        times = f"{soon} (p50 and p90)"
    else:
        times = f"{soon} (p50), {late} (p90)"
    return f"  estimated start: {times}, unless jobs that go first are submitted"


def _from_now(seconds: float) -> str:
    return "within a minute" if seconds < 60 else f"in {phrases.two_units(seconds)}"


def _lines(client: Client, info: JobInfo) -> Iterator[str]:
    now = client.clock.now()
    name = plain(info.name)
    if info.stage is Stage.COMPLETED and info.result is not None:
        yield from _ended(name, info, info.result, now)
        return
    if info.stage is Stage.INVALID:
        yield f"{name} is refused: {plain(info.problem)} ({ReasonCode.INVALID_SPEC.value})"
        yield "correct the spec and upload it again, or delete it: bastion cancel " + name
        return
    if info.stage is Stage.SUBMITTED:
        kept_out = client.kept_out(info)
        if kept_out is not None:
            yield f"{name} is submitted, but not queued yet ({ReasonCode.NOT_YET_EVALUATED.value})"
            yield f"  {phrases.backlog(kept_out)}"
        else:
            yield f"{name} is {phrases.NOT_PICKED_UP} ({ReasonCode.NOT_YET_EVALUATED.value})"
        yield from _alarms(client)
        return
    if info.entry is None:
        status = info.status.value if info.status else "unknown"
        yield f"{name} is {status}; the daemon has not published details yet"
    else:
        yield from _live(name, info, info.entry, now)
    if info.problem:
        yield f"  its new spec is refused: {plain(info.problem)}"
    if info.record is not None:
        yield from _attempts(map(PastAttempt.of, info.record.attempts), now)
    yield from _alarms(client)


def _live(name: str, info: JobInfo, entry: JobEntry, now: float) -> Iterator[str]:
    queued = entry.phase == Phase.QUEUED
    if queued:
        ago = phrases.age(entry.queued_at, now)
        yield f"{name} is queued; it entered the queue {ago} ago ({to_rfc3339(entry.queued_at)})"
    else:
        yield f"{name} is {phrases.progress(entry, now)}"
    yield (
        f"  needs {phrases.needs(entry)}; project {plain(entry.project_id)}, user {plain(entry.user_id)}, "
        f"priority {entry.priority}"
    )
    if info.image:
        yield f"  image {plain(info.image)}"
    yield from _labels(info)
    if entry.waiting is not None and not queued:
        yield from _platform(entry.waiting, now)
    if not queued and entry.started_at is not None:
        yield f"  attempt {entry.attempt} started {phrases.age(entry.started_at, now)} ago"
    if entry.running_since is not None:
        saved = entry.checkpointed_at
        known = f", last checkpoint {phrases.age(saved, now)} ago" if saved is not None else ""
        yield f"  running for {phrases.age(entry.running_since, now)}{known}"
    if entry.reason is not None:
        yield from _reason(entry.reason, now)
    if entry.position is not None:
        in_project = entry.position_in_project
        yield f"  queue position: {entry.position}" + (f" ({in_project} in project)" if in_project is not None else "")


def _labels(info: JobInfo) -> Iterator[str]:
    if info.labels:
        yield f"  labels {phrases.labels(info.labels)}"


def _platform(waiting: CapacityWait, now: float) -> Iterator[str]:
    """What the platform says of a gang that waits, since when, and whether it is half placed."""
    yield f"  waiting for capacity since {to_rfc3339(waiting.since)}"
    if waiting.message:
        yield f"  {plain(shown(waiting.zone) or 'the platform')} says: {plain(waiting.message)}"
    if waiting.partial_since is not None:
        yield (
            f"  half placed for {phrases.age(waiting.partial_since, now)} (since {to_rfc3339(waiting.partial_since)}): "
            "some of its hosts have machines, and the others wait for theirs"
        )


def _reason(reason: WaitReason, now: float) -> Iterator[str]:
    yield f"  {plain(reason.code)}: {plain(reason.message)}"
    yield f"  for {phrases.age(reason.since, now)} (since {to_rfc3339(reason.since)})"
    if reason.holders:
        yield f"  held by: {', '.join(plain(holder) for holder in reason.holders)}"
    if reason.unblock:
        yield f"  starts when: {plain(reason.unblock)}"
    if reason.also:
        yield f"  also: {', '.join(plain(code) for code in reason.also)}"


def _ended(name: str, info: JobInfo, result: Result, now: float) -> Iterator[str]:
    yield f"{name} {phrases.ending(result.outcome, result.message)} (exit code {result.exit_code})"
    if result.failed_worker is not None:
        yield f"  first worker to fail: {result.failed_worker}"
    if result.by and result.by not in result.message:
        yield f"  by {plain(result.by)}"
    if result.queued_at is not None:
        yield f"  queued {phrases.age(result.queued_at, now)} ago ({to_rfc3339(result.queued_at)})"
    yield from _labels(info)
    yield from _attempts(result.attempts, now)


def _attempts(attempts: Iterable[PastAttempt], now: float) -> Iterator[str]:
    for attempt in attempts:
        saved = attempt.checkpointed_at
        known = f"; last checkpoint {phrases.age(saved, now)} ago" if saved is not None else ""
        for each in attempt.tries:
            yield (
                f"  attempt {attempt.number}, try {each.number}: worker {each.failed_worker} exited with code "
                f"{each.exit_code}"
            )
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


def _eta_document(estimate: Estimate | None) -> dict[str, Any] | None:
    """The estimate as RFC 3339 instants, or null with `why`."""
    if estimate is None:
        return None
    eta = estimate.eta
    instants = {
        name: None if instant is None else to_rfc3339(instant)
        for name, instant in (("p10", eta.p10), ("p50", eta.p50), ("p90", eta.p90))
    }
    return {
        **instants,
        "why": eta.why or None,
        "jobs_of_unknown_duration": eta.unknown,
        "from_ended_jobs": estimate.results,
        "from_declared_durations": estimate.declared,
    }


def _headline(client: Client, info: JobInfo) -> Mapping[str, Any] | None:
    """Why the job waits; None if it does not wait."""
    if info.stage is Stage.INVALID:
        return {"code": ReasonCode.INVALID_SPEC.value, "message": info.problem}
    kept_out = client.kept_out(info)
    if kept_out is not None:
        return {
            "code": ReasonCode.NOT_YET_EVALUATED.value,
            "message": phrases.backlog(kept_out),
            "backlog": kept_out.model_dump(mode="json"),
        }
    if info.stage is Stage.SUBMITTED or (info.status is Status.PENDING and info.entry is None):
        return {"code": ReasonCode.NOT_YET_EVALUATED.value, "message": phrases.NOT_PICKED_UP}
    reason = info.entry.reason if info.entry is not None else None
    return reason.model_dump(mode="json") if reason is not None else None


def _document(client: Client, info: JobInfo, estimate: Estimate | None) -> dict[str, Any]:
    result = info.result.document.get("result") if info.result else None
    record = info.record
    return {
        "name": info.name,
        "uid": info.uid or None,
        "stage": info.stage.value,
        "status": info.status.value if info.status else None,
        "reason": _headline(client, info),
        "labels": dict(info.labels),
        "job": info.entry.model_dump(mode="json") if info.entry is not None else None,
        "attempts": [attempt.model_dump(mode="json") for attempt in record.attempts] if record else None,
        "eta": _eta_document(estimate),
        "problem": info.problem or None,
        "result": result,
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
        lost nodes. In the JSON, eta holds p10, p50 and p90 as times, or null with a why; reason is null for a job that
        does not wait.""",
    examples=("bastion why train-1",),
    operands=(1, 1),
    takes_output=True,
    define=_define,
    run=_run,
)
