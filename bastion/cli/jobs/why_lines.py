"""What `bastion why` and `bastion show` say of a job in the same words: its state, and the reason why it waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bastion.cli import phrases
from bastion.cli.jobs import why_limits, why_places
from bastion.cli.output import plain
from bastion.client import Client, JobInfo, Result, Stage
from bastion.client.jobs.last_lines import LastLines, failed_by_command
from bastion.core import exit_codes
from bastion.core.instants import to_rfc3339
from bastion.core.model.lifecycle import Status
from bastion.core.status.document import BacklogEntry, JobEntry, Phase, WaitReason
from scheduler import ReasonCode


def state(info: JobInfo, now: float, *, kept_out: BacklogEntry | None) -> str:
    """The job's state in one line.

    Args:
        kept_out: The queue limit that keeps the job out of the queue; None if none does.
    """
    name = plain(info.name)
    if info.stage is Stage.COMPLETED and info.result is not None:
        result = info.result
        return f"{name} {phrases.ending(result.outcome, result.message)} (exit code {result.exit_code})"
    if info.stage is Stage.INVALID:
        return f"{name} is refused: {plain(info.problem)} ({ReasonCode.INVALID_SPEC.value})"
    if info.stage is Stage.SUBMITTED:
        waits = "submitted, but not queued yet" if kept_out is not None else phrases.NOT_PICKED_UP
        return f"{name} is {waits} ({ReasonCode.NOT_YET_EVALUATED.value})"
    entry = info.entry
    if entry is None:
        status = info.status.value if info.status else "unknown"
        return f"{name} is {status}; the daemon has not published details yet"
    if entry.phase == Phase.QUEUED:
        ago = phrases.age(entry.queued_at, now)
        return f"{name} is queued; it entered the queue {ago} ago ({to_rfc3339(entry.queued_at)})"
    return f"{name} is {phrases.progress(entry, now)}"


def platform(entry: JobEntry, now: float) -> Iterator[str]:
    """What Kueue and the platform say of a job that waits for them."""
    if entry.queue is not None:
        yield from why_places.kueue(entry, entry.queue, now)
    if entry.waiting is not None and entry.phase != Phase.QUEUED:
        in_kueue = entry.queue is not None and bool(entry.queue.workload)
        yield from why_places.platform(entry.waiting, now, entry.instance_type, known=in_kueue)


def place_in_queue(info: JobInfo, entry: JobEntry, now: float) -> Iterator[str]:
    """Its limits, why it waits, and its position."""
    yield from why_limits.lines(info, now)
    if entry.reason is not None:
        yield from reason(entry.reason, now)
    if entry.position is not None:
        in_project = entry.position_in_project
        yield f"  queue position: {entry.position}" + (f" ({in_project} in project)" if in_project is not None else "")


def last(found: LastLines) -> Iterator[str]:
    """The last lines of output, each once made plain."""
    of = f" of worker {found.worker}" if found.worker is not None else ""
    yield f"  last lines{of}, attempt {found.attempt}:"
    several = found.worker is None and len({line.worker for line in found.lines}) > 1
    for line in found.lines:
        head = f"[w{line.worker:02d}] " if several else ""
        yield f"    {head}{plain(line.text.decode('utf-8', 'replace').rstrip())}"


def line_documents(found: LastLines | None) -> list[dict[str, Any]]:
    """The lines for `--output=json`."""
    return [
        {"worker": line.worker, "at": line.at, "stream": line.stream, "line": line.text.decode("utf-8", "replace")}
        for line in (found.lines if found is not None else ())
    ]


def meaning(result: Result) -> str:
    """What the exit code of a command that failed usually means; empty if unknown, or if the message says why."""
    if not failed_by_command(result) or exit_codes.says_memory(result.message):
        return ""
    return exit_codes.meaning(result.attempts[-1].exit_code)


def reason(reason: WaitReason, now: float) -> Iterator[str]:
    yield f"  {plain(reason.code)}: {plain(reason.message)}"
    yield f"  for {phrases.age(reason.since, now)} (since {to_rfc3339(reason.since)})"
    if reason.holders:
        yield f"  held by: {', '.join(plain(holder) for holder in reason.holders)}"
    if reason.unblock:
        yield f"  starts when: {plain(reason.unblock)}"
    if reason.also:
        yield f"  also: {', '.join(plain(code) for code in reason.also)}"


def headline(client: Client, info: JobInfo) -> Mapping[str, Any] | None:
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
