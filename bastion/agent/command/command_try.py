"""Run one try of the command on this host, from the marker on disk to the last uploaded log line.

The first try also fetches and sets up the job's code.

Invariants:

* `started-<try>` is on disk before anything is spawned.
* The command runs only with all of the code, after a successful setup, and, if the job has a storage proxy, beside a
  working one. Without it both are stopped.
* The end of a command is published before anything else happens: the reports of all hosts must show which was first.
* When `run` returns, all processes of the command have ended (or the message says so) and all output is stored. A host
  that shuts down, or has its next try ordered, may cut the upload short.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bastion.agent import disk_stop
from bastion.agent.backoff import Backoff
from bastion.agent.code.fetch import CodeArrival, CodeProblem
from bastion.agent.code.setup import setup_of, with_environment
from bastion.agent.command.checkpoint_file import CheckpointFile
from bastion.agent.command.ending import Ending, Watched
from bastion.agent.command.process import Command
from bastion.agent.environment import CommandEnvironment, HostFacts, command_environment
from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.agent.outputs import host_outputs
from bastion.agent.outputs.sync import OutputSync
from bastion.agent.stop_reasons import Stop
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Order
from bastion.core.errors import EXIT_NO_CODE, EXIT_REFUSED

_log = logging.getLogger(__name__)

# Grace for processes that outlive the command's shell.
ORPHAN_GRACE_SECONDS = 2.0
# A host that shuts down has some seconds, most of them for the command.
SHUTDOWN_FLUSH_SECONDS = 3.0
# A host's shutdown signals the command and the agent at once, in any order. A command that died of such a signal was
# not at fault if the agent's signal follows within this time.
SHUTDOWN_NEWS_SECONDS = 0.5
# After a command failed while the storage proxy was down: by then it is known whether the proxy recovers.
PROXY_NEWS_SECONDS = 15.0
# For the end of the storage proxy's own log. The job's own log waits without a limit, and not for this.
PROXY_LOG_SECONDS = 10.0
_SHUTDOWN_CODES = (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGINT)
_LOOK_SECONDS = 0.05


class CommandTry:
    def __init__(self, parts: HostParts, log: HostLog, *, coordinator: str) -> None:
        """Args:
        log: An open log.
        coordinator: The address in the claim.
        """
        self._parts = parts
        self._log = log
        self._clock = parts.clock
        self._epoch = self._clock.now() - self._clock.monotonic()
        self._try = parts.reporter.try_number
        self._facts = HostFacts(
            marker=parts.marker,
            preempt_file=str(parts.state.preempt_file),
            checkpoint_file=str(parts.state.checkpoint_file),
            coordinator=coordinator,
            emulated=parts.emulated,
            cpus=os.cpu_count() or 1,
            interpreter=parts.interpreter,
        )
        self._outputs: OutputSync | None = None
        self._stop: Stop | None = None

    def run(self) -> Ending:
        """Run the try that the order in force asks for."""
        parts, order = self._parts, self._parts.link.order
        assert order is not None, "the gate opens only for a host with an order"
        self._log.start()
        try:
            parts.state.mark_started(parts.boot_id, self._try)
        except OSError as error:
            return self._flushed(self._failed(host_errors.HOST_FAILED, f"disk error on the host: {error}"))
        if self._try > 1:
            self._log.note(f"try {self._try} of {order.max_tries}")
        if order.proxy:
            parts.sidecar.start(order)
        return self._flushed(self._prepare(order) or self._proxied(order) or self._run_command(order))

    def _prepare(self, order: Order) -> Ending | None:
        """Prepare the host, once before its first try: code, packages, earlier outputs. Return an ending on failure."""
        if self._parts.state.prepared:
            return None
        try:
            ending = self._get_code(order) or self._proxied(order) or self._set_up(order) or self._restore(order)
            if ending is None:
                self._parts.state.mark_prepared()
        except CodeProblem as problem:
            code = EXIT_NO_CODE if problem.error in host_errors.OF_THE_USER else None
            return self._failed(problem.error, str(problem), exit_code=code)
        except OSError as error:
            return self._failed(host_errors.HOST_FAILED, f"disk error on the host: {error}")
        return ending

    def _get_code(self, order: Order) -> Ending | None:
        """Create the command's folder with the job's code in it.

        Raises:
            CodeProblem, OSError: It could not be created.
        """
        parts = self._parts
        if not order.code or parts.state.work_dir.exists():
            parts.state.work_dir.mkdir(exist_ok=True)
            return None
        parts.reporter.publish(HostPhase.PREPARING)
        backoff = Backoff(parts.rng, last_seconds=max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6)))
        arrival = CodeArrival(order, parts.state.work_dir, parts.fetch, backoff=backoff, on_done=parts.wakeup.set)
        arrival.start()
        stop = self._unless_stopped(lambda: arrival.done)
        if stop is not None:
            arrival.give_up()
            return self._stopped(stop)
        if arrival.problem is not None:
            raise arrival.problem
        return None

    def _proxied(self, order: Order) -> Ending | None:
        """Wait for the storage proxy, if the job has one. Nothing of the job runs without it."""
        sidecar = self._parts.sidecar
        if not order.proxy or sidecar.serves:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        stop = self._unless_stopped(lambda: sidecar.settled)
        self._tell_news()
        if stop is not None:
            return self._stopped(stop)
        problem = sidecar.problem
        if problem is None:
            return None
        code = EXIT_REFUSED if problem.error in host_errors.OF_THE_USER else None
        return self._failed(problem.error, problem.message, exit_code=code)

    def _set_up(self, order: Order) -> Ending | None:
        """Run the setup, if there is one.

        Raises:
            CodeProblem: The project's requirements cannot be read.
        """
        state = self._parts.state
        setup = setup_of(order, state.work_dir, state.environment_dir)
        if setup is None:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        self._log.note(f"setup: {setup.title}")
        variables = with_environment(self._environment(order).variables, state.environment_dir)
        try:
            done = self._execute(setup.line, variables, state.work_dir)
        except (OSError, ValueError) as error:
            raise CodeProblem(host_errors.SETUP_FAILED, f"{setup.label} could not be started: {error}") from error
        if done.stop is not None:
            return self._stopped(done.stop, done)
        if done.exit_code != 0:
            message = f"{setup.label} exited with code {done.exit_code}; see the job's log{setup.advice}"
            return self._failed(host_errors.SETUP_FAILED, message, exit_code=done.exit_code)
        return None

    def _restore(self, order: Order) -> Ending | None:
        """Restore the outputs of earlier attempts.

        Raises:
            OSError: A disk error.
        """
        folder = host_outputs.folder_of(self._parts, order)
        if folder is None:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        arrival = host_outputs.arrival(self._parts, order, folder)
        arrival.start()
        stop = self._unless_stopped(lambda: arrival.done)
        if stop is not None:
            arrival.give_up()
            return self._stopped(stop)
        if arrival.problem is not None:
            raise arrival.problem
        for line in host_outputs.told_of(arrival.restored):
            self._log.note(line)
        return None

    def _environment(self, order: Order) -> CommandEnvironment:
        """The command's environment, with the job's own packages."""
        parts = self._parts
        folder = host_outputs.folder_of(parts, order)
        place = parts.sidecar.place if order.proxy else None
        facts = replace(self._facts, output_dir="" if folder is None else str(folder), proxy=place)
        environment = command_environment(parts.environ, order, parts.identity, facts)
        if not parts.state.environment_dir.is_dir():
            return environment
        return replace(environment, variables=with_environment(environment.variables, parts.state.environment_dir))

    def _run_command(self, order: Order) -> Ending:
        parts = self._parts
        environment = self._environment(order)
        if environment.overridden:
            self._log.note("bastion overrides these variables of the job: " + ", ".join(environment.overridden))
        for note in environment.notes:
            self._log.note(note)
        folder = host_outputs.folder_of(parts, order)
        if folder is not None:
            try:
                self._outputs = host_outputs.begin(parts, folder)
            except OSError as error:
                return self._failed(host_errors.HOST_FAILED, f"the output folder could not be created: {error}")
        checkpoints = CheckpointFile(parts.state.checkpoint_file, clock=self._clock, rng=parts.rng)
        began_at = checkpoints.began_at
        self._epoch = began_at - self._clock.monotonic()
        saved_at: float | None = None

        def look() -> None:
            nonlocal saved_at
            latest = checkpoints.latest()
            if latest != saved_at and self._outputs is not None:
                self._outputs.nudge()
            saved_at = latest
            checkpointed_at = checkpoints.news()
            if checkpointed_at is not None:
                parts.reporter.publish(HostPhase.RUNNING, started_at=began_at, checkpointed_at=checkpointed_at)

        def tell_end(exit_code: int | None, ended_at: float) -> None:
            if parts.idle is not None:
                parts.idle.idle()
            checkpointed_at = checkpoints.latest()
            ended, exited = (
                parts.reporter.make(
                    phase,
                    exit_code=exit_code,
                    started_at=began_at,
                    ended_at=ended_at,
                    checkpointed_at=checkpointed_at,
                )
                for phase in (HostPhase.ENDED, HostPhase.EXITED)
            )
            parts.link.publish(ended)
            # Uploading may take long; if the agent dies meanwhile, the result must survive it.
            parts.state.keep_outcome(exited)

        try:
            done = self._execute(
                order.command,
                environment.variables,
                parts.state.work_dir,
                on_start=lambda: parts.reporter.publish(HostPhase.RUNNING, started_at=began_at),
                on_look=look,
                on_end=tell_end,
            )
        except (OSError, ValueError) as error:
            return self._failed(host_errors.HOST_FAILED, f"the command could not be started: {error}")
        if done.stop is not None:
            self._stop = done.stop
            ending = self._stopped(done.stop, done)
        else:
            ending = Ending(
                phase=HostPhase.EXITED,
                exit_code=done.exit_code,
                ended_at=done.ended_at,
                message=done.remark.strip(),
            )
        return replace(ending, started_at=began_at, checkpointed_at=checkpoints.latest())

    def _execute(
        self,
        line: str,
        variables: Mapping[str, str],
        folder: Path,
        *,
        on_start: Callable[[], None] = lambda: None,
        on_look: Callable[[], None] = lambda: None,
        on_end: Callable[[int | None, float], None] = lambda _code, _at: None,
    ) -> Watched:
        """Run a command line until it ends or must be ended; log all of its output.

        Args:
            on_look: Called now and then while it runs and need not stop.
            on_end: Called when it has ended by itself, with its exit code and the time.

        Raises:
            OSError, ValueError: It could not be started.
        """
        command = Command.start(
            line,
            variables=variables,
            folder=folder,
            marker=self._parts.marker,
            on_exit=self._parts.wakeup.set,
            child_processes=self._parts.child_processes,
        )
        on_start()
        pump = self._log.pump(command.pipes)
        self._parts.sidecar.watch(command.members)
        stop = self._watch(command, on_look)
        self._parts.sidecar.watch(None)
        ended_at = self._now()
        if stop is None:
            stop = self._host_goes(command.exit_code) or self._proxy_gone(command.exit_code)
        if stop is None and command.exit_code != 0:
            stop = disk_stop.over_limit(self._parts)
        if stop is None:
            on_end(command.exit_code, ended_at)
        gone = command.end(grace_seconds=0.0 if stop else ORPHAN_GRACE_SECONDS)
        command.reap()
        pump.finish()
        self._wait(lambda: pump.done)
        return Watched(exit_code=command.exit_code, stop=stop, ended_at=self._now() if stop else ended_at, gone=gone)

    def _watch(self, command: Command, on_look: Callable[[], None]) -> Stop | None:
        """Wait for the command's end; return why it was stopped, None if it ended by itself."""
        stop: Stop | None = None
        while True:
            if stop is None and command.exit_code is not None:
                return None
            self._tell_news()
            reason = self._parts.reasons.of_try(self._try) or self._without_proxy() or disk_stop.over_limit(self._parts)
            if stop is None and reason is not None:
                stop = reason
                self._tell_command(stop)
            elif stop is not None and reason is not None and reason.deadline < stop.deadline:
                # A second reason may be more urgent than the first; the first stays the recorded cause.
                stop = replace(stop, deadline=reason.deadline)
            if stop is None:
                on_look()
                self._parts.wakeup.wait(self._parts.identity.arguments.poll_seconds)
                continue
            if not command.ask_to_end() or self._clock.monotonic() >= stop.deadline:
                return stop
            self._parts.wakeup.wait(_LOOK_SECONDS)

    def _host_goes(self, exit_code: int | None) -> Stop | None:
        """Return why the host is shutting down, if that may have ended the command."""
        if exit_code == 0:
            return None
        if exit_code in _SHUTDOWN_CODES:
            self._wait(lambda: self._parts.reasons.urgent, at_most_seconds=SHUTDOWN_NEWS_SECONDS)
        return self._parts.reasons.of_host()

    def _without_proxy(self) -> Stop | None:
        """Return why the command must stop if the storage proxy is gone for good."""
        problem = self._parts.sidecar.problem
        if problem is None:
            return None
        deadline = self._clock.monotonic() + limits.FAILURE_GRACE_SECONDS
        return Stop(phase=HostPhase.FAILED, error=problem.error, message=problem.message, deadline=deadline)

    def _proxy_gone(self, exit_code: int | None) -> Stop | None:
        """Return why, if the loss of the storage proxy may have ended the command."""
        sidecar = self._parts.sidecar
        if exit_code == 0 or not sidecar.started:
            return None
        self._wait(lambda: sidecar.settled, at_most_seconds=PROXY_NEWS_SECONDS)
        return self._without_proxy()

    def _tell_news(self) -> None:
        for line in self._parts.sidecar.news():
            self._log.note(line)

    def _tell_command(self, stop: Stop) -> None:
        """Write the pre-emption file before the signal, so that a signal handler finds the reason."""
        try:
            self._parts.state.ask_to_stop(stop.message or stop.error)
        except OSError as error:
            _log.warning("the pre-emption file could not be written: %s", error)
        if self._outputs is not None:
            # Uploading now leaves less for after the command's end, when time is short.
            self._outputs.nudge()

    def _now(self) -> float:
        """The time for reports. Runtimes are computed from it, so a clock that is set must not change it."""
        return self._epoch + self._clock.monotonic()

    def _failed(self, error: str, message: str, *, exit_code: int | None = None) -> Ending:
        """An ending before the command started; the log shows it too."""
        self._log.note(message)
        return Ending(phase=HostPhase.FAILED, error=error, message=message, exit_code=exit_code, ended_at=self._now())

    def _stopped(self, stop: Stop, done: Watched | None = None) -> Ending:
        """An ending that this host was told to bring about."""
        return Ending(
            phase=stop.phase,
            error=stop.error,
            message=(stop.message + (done.remark if done else "")).strip(),
            exit_code=done.exit_code if done else None,
            ended_at=done.ended_at if done else self._now(),
        )

    def _unless_stopped(self, condition: Callable[[], bool]) -> Stop | None:
        """Wait for the condition; return a reason to stop waiting, if one comes first."""
        while not condition():
            self._tell_news()
            stop = self._parts.reasons.of_try(self._try) or disk_stop.over_limit(self._parts)
            if stop is not None:
                return stop
            self._parts.wakeup.wait(self._parts.identity.arguments.poll_seconds)
        return None

    def _flushed(self, ending: Ending) -> Ending:
        """Wait until outputs and log are stored: briefly on a host that shuts down, not at all before another try."""
        if self._parts.idle is not None:
            self._parts.idle.idle()
        reasons = self._parts.reasons
        if self._outputs is not None:
            ending = self._stored(self._outputs, ending)
        # Before log and report: a disk that the job filled has no space for them.
        disk_stop.reclaim(self._parts, self._outputs, last=self._is_last(ending))
        self._end_proxy(ending)
        self._log.close()
        self._wait(
            lambda: self._log.done or self._next_try_waits(ending), at_most_seconds_if_urgent=SHUTDOWN_FLUSH_SECONDS
        )
        if self._next_try_waits(ending):
            # What is not stored yet stays in the spool, where the next try's log finds it.
            self._log.abandon()
            while self._is_storing and not reasons.shut_down:
                self._parts.wakeup.wait(_LOOK_SECONDS)
            return replace(ending, phase=HostPhase.WAITING)
        if reasons.shut_down:
            self._log.abandon()
        # If the cloud takes the host away, upload until the host dies.
        return ending

    def _end_proxy(self, ending: Ending) -> None:
        """End the storage proxy if no later try needs it."""
        if not self._is_last(ending) and not self._parts.reasons.shut_down:
            return
        self._parts.sidecar.end()
        self._wait(lambda: self._parts.sidecar.done, at_most_seconds=PROXY_LOG_SECONDS)
        self._tell_news()

    def _is_last(self, ending: Ending) -> bool:
        """Whether no other try can follow on this host."""
        order = self._parts.link.order
        return not ending.may_be_followed or order is None or order.max_tries <= self._try

    def _next_try_waits(self, ending: Ending) -> bool:
        if not ending.may_be_followed:
            return False
        return ending.phase is HostPhase.WAITING or self._parts.reasons.superseded(self._try)

    @property
    def _is_storing(self) -> bool:
        return self._log.is_uploading or (self._outputs is not None and self._outputs.is_alive)

    def _stored(self, sync: OutputSync, ending: Ending) -> Ending:
        """Store the outputs once more, now that nothing changes them. The next try does this by itself."""
        sync.finish()
        reasons, now = self._parts.reasons, self._clock.monotonic()
        deadline = now + limits.OUTPUT_FINAL_SECONDS
        stop = self._stop
        while not (sync.done or self._next_try_waits(ending)):
            if stop is not None:
                slack = host_outputs.URGENT_SECONDS if reasons.urgent else host_outputs.STOPPED_SECONDS
                deadline = min(deadline, stop.deadline + slack)
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._parts.state.disk_notice is not None:
                break
            self._parts.wakeup.wait(min(left, self._parts.identity.arguments.poll_seconds))
            stop = reasons.of_try(self._try)
        if not sync.done:
            sync.abandon()
        lacking = "" if self._next_try_waits(ending) else host_outputs.lacking(sync)
        if not lacking:
            return ending
        self._log.note(lacking)
        return replace(ending, message=f"{ending.message} {lacking}.".strip())

    def _wait(
        self,
        condition: Callable[[], bool],
        *,
        at_most_seconds: float | None = None,
        at_most_seconds_if_urgent: float | None = None,
    ) -> bool:
        """Wait until the condition is true or time is up; return the condition."""
        begun = self._clock.monotonic()
        limit = at_most_seconds
        while not condition():
            if limit is None and at_most_seconds_if_urgent is not None and self._parts.reasons.urgent:
                limit = at_most_seconds_if_urgent
                begun = self._clock.monotonic()
            waited = self._clock.monotonic() - begun
            if limit is not None and waited >= limit:
                return False
            self._parts.wakeup.wait(3600.0 if limit is None else limit - waited)
        return True
