"""Running the command of one attempt on this host, from the marker on disk to the last uploaded log line.

Layer: worker.

Invariants:

* `started` is on disk before the command is spawned.
* When `run` returns, nothing of the command is alive (or the message says so) and all its output is stored; a shut-down
  host may cut the uploading short.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from bastion.core import host_errors, limits
from bastion.core.protocol import HostPhase, Order, OrderAction
from bastion.ports import Clock
from bastion.worker.bucket_link import BucketLink
from bastion.worker.checkpoint_file import CheckpointFile
from bastion.worker.command import Command
from bastion.worker.environment import CommandEnvironment, HostFacts, command_environment
from bastion.worker.host_log import HostLog
from bastion.worker.host_state import HostState
from bastion.worker.identity import HostIdentity
from bastion.worker.wakeup import Wakeup

_log = logging.getLogger(__name__)

# Processes that the command left behind get this long after its own end.
LEFTOVER_GRACE_SECONDS = 2.0
# A VM that is shut down is given some seconds by whoever does it; the command gets the first of them.
SHUTDOWN_GRACE_SECONDS = 3.0
SHUTDOWN_FLUSH_SECONDS = 3.0
# A host's shut-down signals the command and the agent at the same time, in any order: a command that died of such a
# signal was not at fault if ours arrives a moment later.
SHUTDOWN_NEWS_SECONDS = 0.5
_SHUTDOWN_CODES = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGINT)
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the command ended on this host; instants in seconds since the epoch."""

    phase: HostPhase
    started_at: float
    ended_at: float
    exit_code: int | None = None
    error: str = ""
    message: str = ""
    checkpointed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """Why the command is being ended, and until when it may end by itself (monotonic seconds)."""

    phase: HostPhase
    error: str
    message: str
    deadline: float


class Attempt:
    """The one execution of the command on this host."""

    def __init__(
        self,
        identity: HostIdentity,
        link: BucketLink,
        state: HostState,
        log: HostLog,
        *,
        clock: Clock,
        rng: Random,
        wakeup: Wakeup,
        base_environ: Mapping[str, str],
        boot_id: str,
        marker: str,
        coordinator: str,
        emulated: bool,
        interpreter: str,
        is_shut_down: Callable[[], bool],
        is_order_lost: Callable[[], bool],
        publish_running: Callable[[float, float | None], None],
    ) -> None:
        """`publish_running` is given the instants of the command's start and of its last checkpoint, if any."""
        self._identity = identity
        self._link = link
        self._state = state
        self._clock = clock
        self._rng = rng
        self._wakeup = wakeup
        self._base_environ = base_environ
        self._boot_id = boot_id
        self._facts = HostFacts(
            marker=marker,
            preempt_file=str(state.preempt_file),
            checkpoint_file=str(state.checkpoint_file),
            coordinator=coordinator,
            emulated=emulated,
            cpus=os.cpu_count() or 1,
            interpreter=interpreter,
        )
        self._is_shut_down = is_shut_down
        self._is_order_lost = is_order_lost
        self._publish_running = publish_running
        self._log = log

    def run(self) -> Ending:
        """Runs the command of the order in force."""
        order = self._link.order
        assert order is not None, "the gate opens only for a host that has its order"
        checkpoints = CheckpointFile(self._state.checkpoint_file, clock=self._clock, rng=self._rng)
        started_at = checkpoints.began_at
        try:
            self._state.mark_started(self._boot_id)
            self._state.work_dir.mkdir()
            self._log.open()
        except OSError as error:
            return self._host_failed(started_at, f"the host's disk refused: {error}")
        environment = command_environment(self._base_environ, order, self._identity, self._facts)
        self._log.start()
        try:
            command = Command.start(
                order.command,
                variables=environment.variables,
                folder=self._state.work_dir,
                marker=self._facts.marker,
                on_exit=self._wakeup.set,
            )
        except (OSError, ValueError) as error:
            ending = self._host_failed(started_at, f"the command could not be started: {error}")
            self._log.note(ending.message)
            self._flush()
            return ending
        self._publish_running(started_at, None)
        return self._see_through(command, environment, checkpoints)

    def _see_through(self, command: Command, environment: CommandEnvironment, checkpoints: CheckpointFile) -> Ending:
        if environment.overridden:
            # Before the pump starts, so that it is the log's first line.
            self._log.note("the agent set these variables, not the job: " + ", ".join(environment.overridden))
        pump = self._log.pump(command.pipes)
        stop = self._watch(command, checkpoints)
        gone = command.end(grace_seconds=0.0 if stop else LEFTOVER_GRACE_SECONDS)
        ended_at = self._clock.now()
        command.reap()
        pump.finish()
        self._wait(lambda: pump.done)
        ending = self._ending(command, stop, checkpoints, ended_at)
        if not gone:
            ending = replace(ending, message=f"{ending.message} Some processes could not be ended.".strip())
        self._flush()
        return ending

    def _ending(self, command: Command, stop: _Stop | None, checkpoints: CheckpointFile, ended_at: float) -> Ending:
        code, started_at, checkpointed_at = command.exit_code, checkpoints.began_at, checkpoints.latest()
        if stop is None and code in _SHUTDOWN_CODES and not self._is_shut_down():
            self._wait(self._is_shut_down, at_most_seconds=SHUTDOWN_NEWS_SECONDS)
        if stop is None and code != 0 and self._is_shut_down():
            stop = self._shutdown_stop()
        if stop is None:
            return Ending(
                phase=HostPhase.EXITED,
                exit_code=code,
                started_at=started_at,
                ended_at=ended_at,
                checkpointed_at=checkpointed_at,
            )
        return Ending(
            phase=stop.phase,
            exit_code=code,
            error=stop.error,
            message=stop.message,
            started_at=started_at,
            ended_at=ended_at,
            checkpointed_at=checkpointed_at,
        )

    def _watch(self, command: Command, checkpoints: CheckpointFile) -> _Stop | None:
        """Waits until the command's end; returns why it was ended, None if it ended by itself.

        Checkpoints are told while it runs; one that it makes when it is asked to stop stands in the final report.
        """
        stop: _Stop | None = None
        while True:
            reason = self._reason_to_stop(ended=command.exit_code is not None)
            if stop is None:
                if reason is None and command.exit_code is not None:
                    return None
                if reason is not None:
                    stop = reason
                    self._tell_command(stop)
            elif reason is not None and reason.deadline < stop.deadline:
                # A second stop may be more urgent than the first; what counts as the cause stays.
                stop = replace(stop, deadline=reason.deadline)
            if stop is None:
                checkpointed_at = checkpoints.news()
                if checkpointed_at is not None:
                    self._publish_running(checkpoints.began_at, checkpointed_at)
                self._wakeup.wait(self._identity.arguments.poll_seconds)
                continue
            if not command.ask_to_end() or self._clock.monotonic() >= stop.deadline:
                return stop
            self._wakeup.wait(_LOOK_SECONDS)

    def _reason_to_stop(self, *, ended: bool) -> _Stop | None:
        if self._is_shut_down():
            return self._shutdown_stop()
        if ended:
            return None
        order = self._link.order
        if order is not None and order.action is OrderAction.STOP:
            return self._ordered_stop(order)
        if self._is_order_lost():
            return _Stop(
                phase=HostPhase.FAILED,
                error=host_errors.ORDER_LOST,
                message=(
                    f"the order could not be read for {self._identity.arguments.order_lost_seconds:.0f} s; the command "
                    "was ended because another machine may start it again"
                ),
                deadline=self._clock.monotonic() + limits.EVICTION_GRACE_SECONDS,
            )
        return None

    def _shutdown_stop(self) -> _Stop:
        return _Stop(
            phase=HostPhase.STOPPED,
            error=host_errors.HOST_SHUT_DOWN,
            message="the host was shut down while the command ran",
            deadline=self._clock.monotonic() + SHUTDOWN_GRACE_SECONDS,
        )

    def _ordered_stop(self, order: Order) -> _Stop:
        return _Stop(
            phase=HostPhase.STOPPED,
            error="",
            message=order.reason,
            deadline=self._clock.monotonic() + order.grace_seconds,
        )

    def _tell_command(self, stop: _Stop) -> None:
        """The file comes before the signal, so that a handler of the signal finds the reason."""
        try:
            self._state.ask_to_stop(stop.message or stop.error)
        except OSError as error:
            _log.warning("the pre-emption file could not be written: %s", error)

    def _host_failed(self, started_at: float, message: str) -> Ending:
        return Ending(
            phase=HostPhase.FAILED,
            error=host_errors.HOST_FAILED,
            message=message,
            started_at=started_at,
            ended_at=self._clock.now(),
        )

    def _flush(self) -> None:
        """Waits until the log is stored; a shut-down host does not wait long."""
        self._log.close()
        if not self._wait(lambda: self._log.done, at_most_seconds_if_shut_down=SHUTDOWN_FLUSH_SECONDS):
            self._log.abandon()

    def _wait(
        self,
        condition: Callable[[], bool],
        *,
        at_most_seconds: float | None = None,
        at_most_seconds_if_shut_down: float | None = None,
    ) -> bool:
        """Waits for something that wakes us up; returns whether it came true."""
        begun = self._clock.monotonic()
        limit = at_most_seconds
        while not condition():
            if limit is None and self._is_shut_down():
                limit = at_most_seconds_if_shut_down
                begun = self._clock.monotonic()
            waited = self._clock.monotonic() - begun
            if limit is not None and waited >= limit:
                return False
            self._wakeup.wait(3600.0 if limit is None else limit - waited)
        return True
