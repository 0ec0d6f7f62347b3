"""One try of the command on this host, from the marker on disk to the last uploaded log line.

Invariants:
* `started-<try>` is on disk before anything is spawned; code and inputs are fetched before that, so that another agent
  of this host can go on with them.
* The command runs only with all of the code, after a successful setup, and, if the job has a storage proxy, beside a
  working one. Without it both are stopped.
* The end of a command is published before anything else happens: the reports of all hosts must show which was first.
* When `run` returns, all processes of the command have ended (or the message says so) and all output is stored. A host
  that shuts down, or has its next try ordered, may cut the upload short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bastion.agent import disk_stop
from bastion.agent.command import benchmark_step
from bastion.agent.command.ending import Ending
from bastion.agent.command.execution import Execution
from bastion.agent.command.memory_kills import MemoryKills
from bastion.agent.command.preparation import Preparation
from bastion.agent.command.progress import ProgressFiles
from bastion.agent.command.stuck import SignWatch
from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.agent.outputs import host_outputs
from bastion.agent.outputs.sync import OutputSync
from bastion.agent.results import host_results
from bastion.agent.results.host_results import ResultsUpload
from bastion.agent.results.mllog_tap import MllogTap
from bastion.agent.stop_reasons import Stop
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Order
from bastion.core.errors import EXIT_NO_CODE, StoreError

# A host that shuts down has some seconds, most of them for the command.
SHUTDOWN_FLUSH_SECONDS = 3.0
# How long to wait for the storage proxy's own log. The wait for the job's log has no limit.
PROXY_LOG_SECONDS = 10.0
# The same where a host is killed at a known time: with outputs, log and report it makes 10 s.
SHUTDOWN_PROXY_LOG_SECONDS = 1.0
_POLL_SECONDS = 0.05


class OneTry:
    """One try of the command. Call `run` once."""

    def __init__(self, parts: HostParts, log: HostLog, *, coordinator: str, hosts: tuple[str, ...]) -> None:
        """`log`: open; `coordinator`, `hosts`: the addresses in the claim."""
        self._parts = parts
        self._log = log
        self._clock = parts.clock
        self._try = parts.reporter.try_number
        self._execution = Execution(parts, log, try_number=self._try, on_stop=self._sync_soon)
        self._preparation = Preparation(parts, log, self._execution, coordinator=coordinator, hosts=hosts)
        self._outputs: OutputSync | None = None
        self._variables: dict[str, str] | None = None  # of the command, once it was started
        self._stop: Stop | None = None
        self._store_by = 0.0  # outputs and results

    def run(self) -> Ending:
        parts, order = self._parts, self._parts.link.order
        assert order is not None, "the gate opens only for a host with an order"
        self._log.start()
        try:
            parts.state.make_job_dir(None if order.root else parts.job_user)
        except OSError as error:
            return self._flush(self._execution.failed(host_errors.HOST_FAILED, f"disk error on the host: {error}"))
        if self._try == 1:
            if parts.note:
                self._log.note(parts.note)
            if order.root and parts.job_user is not None:
                self._log.note("setup and command run as root (--root_user)")
        ending = self._preparation.read_secrets(order) or self._preparation.fetch(order)
        if ending is not None:
            return self._flush(ending)
        try:
            parts.state.mark_started(parts.boot_id, self._try)
        except OSError as error:
            return self._flush(self._execution.failed(host_errors.HOST_FAILED, f"disk error on the host: {error}"))
        if self._try > 1:
            self._log.note(f"try {self._try} of {order.max_tries}")
        if order.proxy:
            user = parts.command_user
            parts.sidecar.start(order, user=user.uid if user is not None else None)
        return self._flush(
            self._preparation.run(order) or self._preparation.wait_for_proxy(order) or self._run_command(order)
        )

    def _run_command(self, order: Order) -> Ending:
        parts = self._parts
        environment = self._preparation.environment(order)
        if environment.overridden:
            self._log.note("bastion overrides these variables of the job: " + ", ".join(environment.overridden))
        for note in environment.notes:
            self._log.note(note)
        folder = host_outputs.folder_of(parts, order)
        if folder is not None:
            try:
                self._outputs = host_outputs.begin(parts, order, folder)
            except host_outputs.FolderBlocked as problem:
                return self._execution.failed(host_errors.SETUP_FAILED, str(problem), exit_code=EXIT_NO_CODE)
            except (OSError, StoreError) as error:
                return self._execution.failed(
                    host_errors.HOST_FAILED, f"the output folder could not be created: {error}"
                )
        state = parts.state
        files = ProgressFiles(
            state.checkpoint_file, state.step_file, clock=self._clock, rng=parts.rng, files=state.files
        )
        began_at = files.began_at
        self._execution.set_start(began_at)
        saved_at: float | None = None
        watch = self._sign_watch(order)
        stuck: bool | None = None
        kills, killed = MemoryKills.now(), ""

        def poll() -> None:
            nonlocal saved_at, stuck
            latest = files.latest().checkpointed_at
            if latest != saved_at and self._outputs is not None:
                self._outputs.nudge()
            saved_at = latest
            progress, before = files.to_report(), stuck
            if watch is not None:
                stuck = watch.look(self._execution.output_bytes) or (None if stuck is None else False)
            if progress is not None or stuck != before:
                progress = progress or files.latest()
                parts.reporter.publish(HostPhase.RUNNING, started_at=began_at, progress=progress, stuck=stuck)

        def report_end(exit_code: int | None, ended_at: float) -> None:
            if parts.idle is not None:
                parts.idle.idle()
            nonlocal killed
            if exit_code:
                killed = kills.told(MemoryKills.now(), shared=parts.emulated or parts.identity.on_bastion)
            progress = files.latest()
            ended, exited = (
                parts.reporter.make(
                    phase,
                    exit_code=exit_code,
                    message=killed,
                    started_at=began_at,
                    ended_at=ended_at,
                    progress=progress,
                )
                for phase in (HostPhase.ENDED, HostPhase.EXITED)
            )
            parts.link.publish(ended)
            # Uploading may take long; if the agent dies meanwhile, the result must survive it.
            parts.state.keep_outcome(exited)

        self._variables = environment.variables
        tap = MllogTap(parts.state.mllog_file)
        try:
            step = benchmark_step.of(parts, order, environment.variables)
            done = self._execution.run(
                order.command,
                environment.variables if step is None else step.variables,
                parts.state.work_dir if step is None else parts.state.folder,
                program=() if step is None else step.program,
                on_start=lambda: parts.reporter.publish(HostPhase.RUNNING, started_at=began_at),
                on_poll=poll,
                on_end=report_end,
                tap=tap.look,
            )
        except (OSError, ValueError) as error:
            return self._execution.failed(host_errors.HOST_FAILED, f"the command could not be started: {error}")
        finally:
            tap.close()
        if done.stop is not None:
            self._stop = done.stop
            ending = self._execution.stopped(done.stop, done)
        else:
            ending = Ending(
                phase=HostPhase.EXITED,
                exit_code=done.exit_code,
                ended_at=done.ended_at,
                message=f"{killed}.{done.remark}" if killed else done.remark.strip(),
            )
        return replace(ending, started_at=began_at, progress=files.latest(), gone=done.gone)

    def _sign_watch(self, order: Order) -> SignWatch | None:
        if not order.stuck_after_seconds:
            return None
        state = self._parts.state
        return SignWatch(
            (state.checkpoint_file, state.step_file),
            limit_seconds=order.stuck_after_seconds,
            clock=self._clock,
            files=state.files,
        )

    def _sync_soon(self) -> None:
        # Uploading now leaves less for after the command's end, when time is short.
        if self._outputs is not None:
            self._outputs.nudge()

    def _flush(self, ending: Ending) -> Ending:
        """Wait until outputs and log are stored: briefly on a host that shuts down, not at all before another try."""
        if self._parts.idle is not None:
            self._parts.idle.idle()
        reasons = self._parts.reasons
        self._store_by = self._clock.monotonic() + limits.OUTPUT_FINAL_SECONDS
        results = self._begin_results(ending)
        if self._outputs is not None:
            ending = self._store_outputs(self._outputs, ending)
        if results is not None:
            ending = self._store_results(results, ending)
        # Before log and report: a disk that the job filled has no space for them.
        disk_stop.reclaim(self._parts, self._outputs, last=self._is_last(ending))
        self._end_proxy(ending)
        self._log.close()
        self._execution.wait(
            lambda: self._log.done or self._next_try_waits(ending), at_most_seconds_if_urgent=SHUTDOWN_FLUSH_SECONDS
        )
        if self._next_try_waits(ending):
            # What is not stored yet stays in the spool, where the next try's log finds it.
            self._log.abandon()
            while self._is_storing and not reasons.shut_down:
                self._parts.wakeup.wait(_POLL_SECONDS)
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
        most, reasons = PROXY_LOG_SECONDS, self._parts.reasons
        if reasons.has_shutdown_limit:
            most = min(most, SHUTDOWN_PROXY_LOG_SECONDS + reasons.spare_seconds)
        self._execution.wait(lambda: self._parts.sidecar.done, at_most_seconds=most)
        self._execution.log_proxy_notes()

    def _is_last(self, ending: Ending) -> bool:
        order = self._parts.link.order
        return not ending.may_be_followed or order is None or order.is_last(self._try)

    def _next_try_waits(self, ending: Ending) -> bool:
        if not ending.may_be_followed:
            return False
        return ending.phase is HostPhase.WAITING or self._parts.reasons.superseded(self._try)

    @property
    def _is_storing(self) -> bool:
        return self._log.is_uploading or (self._outputs is not None and self._outputs.is_alive)

    def _begin_results(self, ending: Ending) -> ResultsUpload | None:
        order = self._parts.link.order
        if self._variables is None or order is None:
            return None
        code = ending.exit_code if ending.phase is HostPhase.EXITED else None
        results = host_results.begin(
            self._parts, order, variables=self._variables, try_number=self._try, exit_code=code
        )
        for problem in [] if results is None else results.problems:
            self._log.note(problem)
        return results

    def _store_results(self, results: ResultsUpload, ending: Ending) -> Ending:
        self._wait_until_stored(lambda: results.done, ending)
        if results.stored:
            self._parts.state.remove_results()
            return ending
        results.abandon()
        if self._next_try_waits(ending):
            return ending
        missing = f"the results could not be stored: {results.storage_error or 'there was no time left'}"
        self._log.note(missing)
        return ending.with_remark(missing)

    def _store_outputs(self, sync: OutputSync, ending: Ending) -> Ending:
        """Store the outputs once more, now that nothing changes them; a next try, if ordered, stores them instead."""
        sync.finish()
        self._wait_until_stored(lambda: sync.done, ending)
        if not sync.done:
            sync.abandon()
        missing = "" if self._next_try_waits(ending) else host_outputs.describe_missing(sync)
        if not missing:
            return ending
        self._log.note(missing)
        return ending.with_remark(missing)

    def _wait_until_stored(self, done: Callable[[], bool], ending: Ending) -> None:
        """Wait until something is stored, the time for that is over, or a next try is ordered."""
        reasons, stop = self._parts.reasons, self._stop
        deadline = self._store_by
        while not (done() or self._next_try_waits(ending)):
            if stop is not None:
                slack = host_outputs.URGENT_SECONDS if reasons.urgent else host_outputs.STOPPED_SECONDS
                deadline = min(deadline, stop.deadline + slack)
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._parts.state.disk_notice is not None:
                break
            self._parts.wakeup.wait(min(left, self._parts.identity.arguments.poll_seconds))
            stop = reasons.after_end(self._try) or self._stop
