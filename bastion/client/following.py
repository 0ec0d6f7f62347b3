"""Following one job to its end: its progress, its output, and how it ended, as a stream of events.

Layer: client. `follow` polls the bucket and sleeps on the injected clock; the caller shows the events and may stop at
any time, which changes nothing for the job.

Invariants:

* All output that is in the bucket when the job ends comes before `Ended`.
* A bucket that does not answer is reported once and asked again; it never ends the following.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from bastion.client.daemon_pulse import DaemonPulse
from bastion.client.job_logs import LogPiece, RunLogs, runs_of
from bastion.client.jobs import Client, Sight, Stage
from bastion.client.results import Result
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, StoreUnavailable
from bastion.core.keys import Run

POLL_LOCAL_SECONDS = 0.3
POLL_REMOTE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The job's progress changed. `entry` is its entry in the status document, None before there is one."""

    phase: str
    entry: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """Output from here on is that of this run; `hosts` workers write it (None: unknown)."""

    run: Run
    hosts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """New output, in order."""

    pieces: list[LogPiece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something the user should know: no daemon, no answer from the bucket, and that it is over."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The last event.

    Attributes:
        result: How the job ended; None if it never became one (`message` says why).
        exit_code: What `--wait` returns.
    """

    result: Result | None
    exit_code: int
    message: str


Event: TypeAlias = Progressed | StartedAttempt | Logged | Noted | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Which parts to follow.

    Attributes:
        logs: Whether output is read at all.
        worker: Only this worker's output; None: all.
        first_attempt: Output of attempts before this one is left out.
    """

    logs: bool = True
    worker: int | None = None
    first_attempt: int = 1


EVERYTHING = Followed()


def follow(client: Client, name: str, uid: str, *, generation: int = 0, what: Followed = EVERYTHING) -> Iterator[Event]:
    """Follows the job of that name and uid until it has ended and all its output was given.

    Args:
        generation: Of the spec that was just submitted. The job that the daemon makes of that very object is followed,
            even if the daemon spells the ROOT in another way and so draws another uid.

    Raises:
        StoreError: other than `StoreUnavailable`: asking again would not help.
    """
    following = _Following(client, name, uid, generation, what)
    pause = POLL_LOCAL_SECONDS if client.root.local else POLL_REMOTE_SECONDS
    silent = False
    while True:
        try:
            yield from following.look()
            if silent:
                silent = False
                yield Noted(text="the bucket answers again")
            if following.ended is not None:
                yield following.ended
                return
        except StoreUnavailable as error:
            if not silent:
                silent = True
                yield Noted(text=f"the bucket does not answer, asking again: {error}")
        client.clock.sleep(pause)


class _Following:
    """What has been seen of the job so far."""

    def __init__(self, client: Client, name: str, uid: str, generation: int, what: Followed) -> None:
        self._client = client
        self._name = name
        self._uid = uid
        self._generation = generation
        self._what = what
        self._pulse = DaemonPulse(client.store, client.clock, local=client.root.local)
        self._daemon_problem = ""
        self._shown: tuple[object, ...] | None = None
        self._run: Run | None = None
        self._logs: RunLogs | None = None
        self._vanished = False
        self.ended: Ended | None = None

    def look(self) -> Iterator[Event]:
        """One look at the bucket; sets `ended` when all has been said."""
        sight = self._sight()
        ended = self._end(sight)
        if sight is not None:
            self._vanished = False
            yield from self._progress(sight)
        if self._what.logs:
            entry = sight.entry if sight else None
            yield from self._read_logs(entry)
        if ended is not None:
            if self._what.logs:
                yield from self._drain()
            self.ended = ended
        else:
            yield from self._daemon()

    # -- progress -----------------------------------------------------------------------------------------------

    def _sight(self) -> Sight | None:
        sight = self._client.look(self._name)
        if sight is None or sight.uid == self._uid:
            return sight
        if self._generation and sight.record is not None and sight.record.generation == self._generation:
            self._uid = sight.uid
            return sight
        return None

    def _end(self, sight: Sight | None) -> Ended | None:
        if sight is not None and sight.stage is Stage.INVALID:
            return Ended(result=None, exit_code=EXIT_REFUSED, message=f"the spec is refused: {sight.problem}")
        if sight is not None and sight.stage is not Stage.COMPLETED:
            return None
        result = sight.result if sight else self._client.result(self._name, self._uid)
        if result is not None:
            return Ended(result=result, exit_code=result.exit_code, message=result.message)
        return self._gone()

    def _gone(self) -> Ended | None:
        """Neither spec, state nor result: twice in a row, since one look may fall between two writes."""
        if not self._vanished:
            self._vanished = True
            return None
        text = "its spec was removed or replaced before the bastion took it up"
        return Ended(result=None, exit_code=EXIT_CANCELLED, message=text)

    def _progress(self, sight: Sight) -> Iterator[Event]:
        entry = sight.entry
        if entry is None and self._shown is not None:
            return  # a job that has just ended is no longer published
        phase = str(entry.get("phase")) if entry else "submitted"
        shown: tuple[object, ...] = (phase,)
        if entry is not None:
            reason = entry.get("reason")
            text = (reason.get("code"), reason.get("message")) if isinstance(reason, dict) else None
            shown = (phase, entry.get("attempt"), entry.get("hosts_up"), entry.get("stopping"), text)
        if shown != self._shown:
            self._shown = shown
            yield Progressed(phase=phase, entry=entry)

    def _daemon(self) -> Iterator[Event]:
        problem = self._pulse.look()
        if bool(problem) != bool(self._daemon_problem):
            yield Noted(
                text=f"{problem}; a job that runs goes on, and the rest waits until a daemon runs again"
                if problem
                else "a daemon is at work again"
            )
        self._daemon_problem = problem

    # -- output -------------------------------------------------------------------------------------------------

    def _read_logs(self, entry: Mapping[str, Any] | None) -> Iterator[Event]:
        number = entry.get("attempt") if entry else None
        if isinstance(number, int) and number >= self._what.first_attempt:
            newest = Run(self._uid, number)
            if self._run is None or newest.attempt > self._run.attempt:
                # Attempts that ended between two looks are not skipped.
                earlier = [run for run in self._runs() if run.attempt < number]
                for run in earlier:
                    yield from self._all_of(run)
                yield from self._begin(newest)
        if self._logs is not None:
            pieces = self._logs.poll()
            if pieces:
                yield Logged(pieces=pieces)

    def _runs(self) -> list[Run]:
        """Runs after the present one that have output; the cleanup command's is not the job's."""
        after = self._run.attempt if self._run else self._what.first_attempt - 1
        return [run for run in runs_of(self._client.store, self._name, self._uid) if run.attempt > after]

    def _begin(self, run: Run) -> Iterator[Event]:
        """Turns to another run, after the present one has said everything."""
        if self._logs is not None:
            for pieces in self._logs.drain():
                yield Logged(pieces=pieces)
        spec = self._client.spec(self._name, self._uid)
        hosts = spec.hosts if spec else None
        self._run = run
        self._logs = RunLogs(self._client.store, self._name, run, hosts=hosts, worker=self._what.worker)
        yield StartedAttempt(run=run, hosts=hosts)

    def _all_of(self, run: Run) -> Iterator[Event]:
        yield from self._begin(run)
        assert self._logs is not None  # just begun
        for pieces in self._logs.drain():
            yield Logged(pieces=pieces)

    def _drain(self) -> Iterator[Event]:
        if self._logs is not None:
            for pieces in self._logs.drain():
                yield Logged(pieces=pieces)
        for run in self._runs():
            yield from self._all_of(run)
