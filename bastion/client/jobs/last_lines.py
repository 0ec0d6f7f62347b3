"""The last lines of a job's output that its hosts prove to have written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import JobInfo
from bastion.client.jobs.results import Result
from bastion.client.logs.pieces import LineJoiner, LogPiece
from bastion.core.bucket.keys import Run

# A line may have many megabytes; of a longer one this much is kept.
LINE_MAX_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLines:
    """The last lines of one attempt.

    Attributes:
        worker: Whose lines these are; None: all workers'.
    """

    attempt: int
    worker: int | None
    lines: Sequence[LogPiece]


def last_lines(client: Client, info: JobInfo, count: int, *, worker: int | None = None) -> LastLines | None:
    """Read the last lines of the newest attempt that may have run; None if there is none.

    Costs a page of the segments' names for each thousand, and the segments that have the lines.

    Args:
        worker: Only this one's.

    Raises:
        StoreError: the bucket does not answer.
    """
    number = _newest(info)
    known = info.public_keys
    if not number or known is None:
        return None
    run = Run(info.uid, number)
    public_key = known.of(run)
    if public_key is None:
        return None
    logs = client.logs(info.name, run, worker=worker, tail=count, public_key=public_key)
    kept: deque[LogPiece] = deque(maxlen=count)
    joiner = LineJoiner(lambda piece: kept.append(_short(piece)), rewriting=True)
    for pieces in logs.drain():
        for piece in pieces:
            joiner.add(piece)
    joiner.finish()
    return LastLines(attempt=number, worker=worker, lines=tuple(kept))


def failed_by_command(result: Result) -> bool:
    """Whether the job failed because its command did, so that its last lines and its exit code say why."""
    return result.outcome == "failed" and bool(result.attempts) and result.attempts[-1].cause == "failed"


def _newest(info: JobInfo) -> int:
    if info.record is not None:
        if info.record.attempt is not None:
            return info.record.attempt.number
        return next((past.number for past in reversed(info.record.attempts) if past.may_have_run), 0)
    if info.result is not None:
        return next((past.number for past in reversed(info.result.attempts) if past.cause not in _NEVER_RAN), 0)
    return 0


# Causes of attempts that never had machines.
_NEVER_RAN = ("capacity", "refused", "superseded")


def _short(piece: LogPiece) -> LogPiece:
    return piece if len(piece.text) <= LINE_MAX_BYTES else replace(piece, text=piece.text[:LINE_MAX_BYTES] + b"...")
