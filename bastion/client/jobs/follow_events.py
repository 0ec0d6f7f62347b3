"""What `follow` gives, and what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bastion.client.jobs.results import Result
from bastion.client.logs.pieces import LogPiece
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.status.document import BacklogEntry, JobEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The job's progress changed.

    Attributes:
        entry: Its entry in the status document; None before there is one.
        again: Only the time for which it has waited for capacity changed.
        kept_out: The queue limit that keeps the job out of the queue; None if none does.
    """

    phase: str
    entry: JobEntry | None
    again: bool = False
    kept_out: BacklogEntry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """Output of this run follows, written by `hosts` workers (None: unknown) of `slices` slices."""

    run: Run
    hosts: int | None
    slices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """New output, in order."""

    pieces: list[LogPiece]


@dataclass(frozen=True, slots=True)
class Quiet:
    """There is no news, and some lines are unfinished: the caller may show their present text."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All output that existed at the beginning has been given. Comes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A note for the user: no daemon, no answer from the bucket, or the end of either."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event.

    Attributes:
        result: How the job ended; None if the spec never became a job (`message` says why).
        exit_code: For `--wait`.
    """

    result: Result | None
    exit_code: int
    message: str


Event: TypeAlias = Progressed | StartedAttempt | Logged | Quiet | CaughtUp | Noted | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """What to follow.

    Attributes:
        logs: Whether to read the output.
        worker: Only this worker's output; None: all.
        first_attempt: Skip the output of earlier attempts.
        since: Output before this instant may be skipped; seconds since the epoch.
        tail: Existing output before about the last `tail` lines of each attempt may be skipped.
        source: The job's own output, or that of its storage proxy.
        unproved: Read also what does not prove to be of the job's hosts.
    """

    logs: bool = True
    worker: int | None = None
    first_attempt: int = 1
    since: float | None = None
    tail: int | None = None
    source: keys.LogSource = "worker"
    unproved: bool = False
