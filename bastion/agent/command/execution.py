"""Run command lines of one try on this host, and decide when they must stop.

Invariant: when `run` returns, all processes of the command line have ended (or `ProcessEnd.gone` is false), and all
output is in the log's spool.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bastion.agent import disk_stop
from bastion.agent.command import stacks
from bastion.agent.command.ending import Ending, ProcessEnd
from bastion.agent.command.process import Command
from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.agent.logs.lines import LogRecord
from bastion.agent.logs.pump import LogPump
from bastion.agent.stop_reasons import Stop
from bastion.core import limits
from bastion.core.bucket.protocol import HostPhase

_log = logging.getLogger(__name__)

# Grace for processes that outlive the command's shell.
ORPHAN_GRACE_SECONDS = 2.0
# A host's shutdown signals the command and the agent at once, in any order. A command that died of such a signal was
# not at fault if the agent's signal follows within this time.
SHUTDOWN_SIGNAL_SECONDS = 0.5
# After a command failed while the storage proxy was down: by then it is known whether the proxy recovers.
PROXY_RECOVERY_SECONDS = 15.0
_SHUTDOWN_CODES = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGINT)
_POLL_SECONDS = 0.05


class Execution:
    """Runs command lines for one try, one at a time. Times are seconds since the epoch."""

    def __init__(self, parts: HostParts, log: HostLog, *, try_number: int, on_stop: Callable[[], None]) -> None:
        """`on_stop`: called once a command line has been asked to stop."""
        self._parts = parts
        self._log = log
        self._clock = parts.clock
        self._try = try_number
        self._on_stop = on_stop
        self._epoch = self._clock.now() - self._clock.monotonic()
        self._pump: LogPump | None = None

    @property
    def output_bytes(self) -> int:
        """What the present command line has written so far."""
        return 0 if self._pump is None else self._pump.read_bytes

    def now(self) -> float:
        """The time for reports. A clock that is set does not change it, so that runtimes are right."""
        return self._epoch + self._clock.monotonic()

    def set_start(self, at: float) -> None:
        """Set the clock of `now` to the command's start, in seconds since the epoch."""
        self._epoch = at - self._clock.monotonic()

    def run(
        self,
        line: str,
        variables: Mapping[str, str],
        folder: Path,
        *,
        on_start: Callable[[], None] = lambda: None,
        on_poll: Callable[[], None] = lambda: None,
        on_end: Callable[[int | None, float], None] = lambda _code, _at: None,
        tap: Callable[[LogRecord], None] | None = None,
        program: Sequence[str] = (),
    ) -> ProcessEnd:
        """Run a command line until it ends or must be ended; log all of its output. Raises OSError or ValueError.

        Args:
            on_poll: Called at each poll while it runs and need not stop.
            on_end: Called when it has ended by itself, with its exit code and the time.
            tap: Called with each record of its output, from another thread.
            program: Runs as the agent in the place of the line; see `Command.start`.
        """
        command = Command.start(
            line,
            variables=variables,
            folder=folder,
            marker=self._parts.marker,
            on_exit=self._parts.wakeup.set,
            child_processes=self._parts.child_processes,
            user=self._parts.command_user,
            program=program,
        )
        on_start()
        pump = self._pump = self._log.pump(command.pipes, tap=tap)
        self._parts.sidecar.watch(command.members)
        stop = self._watch(command, variables, on_poll)
        self._parts.sidecar.watch(None)
        ended_at = self.now()
        if stop is None:
            stop = self._host_shuts_down(command.exit_code) or self._proxy_lost(command.exit_code)
        if stop is None and command.exit_code != 0:
            stop = disk_stop.over_limit(self._parts)
        if stop is None:
            on_end(command.exit_code, ended_at)
        gone = command.end(grace_seconds=0.0 if stop else ORPHAN_GRACE_SECONDS)
        command.reap()
        pump.finish()
        self.wait(lambda: pump.done)
        return ProcessEnd(exit_code=command.exit_code, stop=stop, ended_at=self.now() if stop else ended_at, gone=gone)

    def failed(self, error: str, message: str, *, exit_code: int | None = None) -> Ending:
        """An ending before the command started; the log shows it too."""
        self._log.note(message)
        return Ending(phase=HostPhase.FAILED, error=error, message=message, exit_code=exit_code, ended_at=self.now())

    def stopped(self, stop: Stop, done: ProcessEnd | None = None) -> Ending:
        return Ending(
            phase=stop.phase,
            error=stop.error,
            message=(stop.message + (done.remark if done else "")).strip(),
            exit_code=done.exit_code if done else None,
            ended_at=done.ended_at if done else self.now(),
        )

    def wait(
        self,
        condition: Callable[[], bool],
        *,
        at_most_seconds: float | None = None,
        at_most_seconds_if_urgent: float | None = None,
    ) -> bool:
        """Wait until the condition is true or time is up; return the condition.

        `at_most_seconds_if_urgent`: from when the host goes away; longer by what the command left of its own time.
        """
        begun = self._clock.monotonic()
        limit = at_most_seconds
        while not condition():
            if limit is None and at_most_seconds_if_urgent is not None and self._parts.reasons.urgent:
                limit = at_most_seconds_if_urgent + self._parts.reasons.spare_seconds
                begun = self._clock.monotonic()
            waited = self._clock.monotonic() - begun
            if limit is not None and waited >= limit:
                return False
            self._parts.wakeup.wait(3600.0 if limit is None else limit - waited)
        return True

    def wait_unless_stopped(self, condition: Callable[[], bool]) -> Stop | None:
        """Wait for the condition; return a stop reason if one comes first."""
        while not condition():
            self.log_proxy_notes()
            stop = self._parts.reasons.of_try(self._try) or disk_stop.over_limit(self._parts)
            if stop is not None:
                return stop
            self._parts.wakeup.wait(self._parts.reasons.next_look(self._parts.identity.arguments.poll_seconds))
        return None

    def log_proxy_notes(self) -> None:
        for line in self._parts.sidecar.take_notes():
            self._log.note(line)

    def _watch(self, command: Command, variables: Mapping[str, str], on_poll: Callable[[], None]) -> Stop | None:
        """Wait for the command's end; return why it was stopped, None if it ended by itself."""
        stop: Stop | None = None
        while True:
            if stop is None and command.exit_code is not None:
                return None
            self.log_proxy_notes()
            reason = self._parts.reasons.of_try(self._try) or self._without_proxy() or disk_stop.over_limit(self._parts)
            if stop is None and reason is not None and reason.stuck:
                self._show_stacks(command, variables)
                reason = self._parts.reasons.of_try(self._try) or reason  # its time begins now
            if stop is None and reason is not None:
                stop = reason
                self._ask_to_stop(stop)
            elif stop is not None and reason is not None and reason.deadline < stop.deadline:
                # A second reason may be more urgent than the first; the first stays the recorded cause.
                stop = replace(stop, deadline=reason.deadline)
            if stop is None:
                on_poll()
                self._parts.wakeup.wait(self._parts.reasons.next_look(self._parts.identity.arguments.poll_seconds))
                continue
            if not command.ask_to_end() or self._clock.monotonic() >= stop.deadline:
                return stop
            self._parts.wakeup.wait(_POLL_SECONDS)

    def _show_stacks(self, command: Command, variables: Mapping[str, str]) -> None:
        def pause(seconds: float) -> bool:
            self._parts.wakeup.wait(seconds)
            reason = self._parts.reasons.of_try(self._try)
            return reason is not None and reason.stuck

        parts = stacks.StackParts(
            variables=variables,
            child_processes=self._parts.child_processes,
            clock=self._clock,
            note=self._log.note,
            output_bytes=lambda: self.output_bytes,
            pause=pause,
            user=self._parts.command_user,
        )
        stacks.show(command.members(), parts)

    def _ask_to_stop(self, stop: Stop) -> None:
        # Before the signal, so that a signal handler finds the reason.
        try:
            self._parts.state.ask_to_stop(stop.message or stop.error)
        except OSError as error:
            _log.warning("the preempt file could not be written: %s", error)
        self._on_stop()

    def _host_shuts_down(self, exit_code: int | None) -> Stop | None:
        """The host's shutdown, if it may have ended the command."""
        if exit_code == 0:
            return None
        if exit_code in _SHUTDOWN_CODES:
            self.wait(lambda: self._parts.reasons.urgent, at_most_seconds=SHUTDOWN_SIGNAL_SECONDS)
        return self._parts.reasons.of_host()

    def _without_proxy(self) -> Stop | None:
        problem = self._parts.sidecar.problem
        if problem is None:
            return None
        deadline = self._clock.monotonic() + limits.FAILURE_GRACE_SECONDS
        return Stop(phase=HostPhase.FAILED, error=problem.error, message=problem.message, deadline=deadline)

    def _proxy_lost(self, exit_code: int | None) -> Stop | None:
        """The loss of the storage proxy, if it may have ended the command."""
        sidecar = self._parts.sidecar
        if exit_code == 0 or not sidecar.started:
            return None
        self.wait(lambda: sidecar.settled, at_most_seconds=PROXY_RECOVERY_SECONDS)
        return self._without_proxy()
