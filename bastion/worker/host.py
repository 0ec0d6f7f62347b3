"""The life of one host of one attempt: wait for the gate, run the command once, tell how it ended.

Layer: worker; the loop that decides. Threads beside it speak with the bucket (`bucket_link`), read the command's output
and upload it (`host_log`), so that nothing here waits for a network while the command runs.

Invariants:

* The command is started at most once on a host, and only behind a claim that holds this attempt's token.
* A running command ends only by itself, by a stop order, because this host is told to shut down (SIGTERM), or, where
  the arguments say so (`order_lost_seconds`), because its order could not be read for so long. An unreachable bucket
  or a dead daemon is none of these.
* The final report is written after the last log segment is stored. Both are retried for ever, except when the host
  itself is shut down.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from bastion import processes
from bastion.core import host_errors, instants, limits
from bastion.core.errors import EXIT_INFRASTRUCTURE, StoreError
from bastion.core.protocol import HostPhase, OrderAction, Report
from bastion.ports import Clock, ObjectStore
from bastion.worker import coordinator
from bastion.worker.attempt import SHUTDOWN_FLUSH_SECONDS, Attempt
from bastion.worker.backoff import Backoff, jittered
from bastion.worker.bucket_link import BucketLink
from bastion.worker.command import end_leftovers
from bastion.worker.environment import BOOT_ID, EMULATED_TPU, STATE_DIR
from bastion.worker.gate import Gate, Passage, Verdict
from bastion.worker.host_log import HostLog
from bastion.worker.host_state import HostState
from bastion.worker.identity import HostIdentity
from bastion.worker.wakeup import Wakeup

_log = logging.getLogger(__name__)

# A VM that is shut down gets some seconds; half of them are for the report.
SHUTDOWN_REPORT_SECONDS = 3.0


class Host:
    """One agent process's view of its host. `run` does everything; `shut_down` may be called from a signal handler."""

    def __init__(
        self,
        identity: HostIdentity,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: Random,
        environ: Mapping[str, str],
        state_dir: Path,
    ) -> None:
        arguments = identity.arguments
        self._identity = identity
        self._store = store
        self._clock = clock
        self._rng = rng
        self._environ = dict(environ)
        self._boot_id = environ.get(BOOT_ID) or processes.boot_id()
        self._emulated = environ.get(EMULATED_TPU) == "1"
        self._state = HostState(state_dir, run=arguments.run, host=identity.host)
        # Not the whole token: environments show up in process listings.
        self._marker = f"{arguments.run}.{identity.host}.{arguments.token[:8]}"
        self._wakeup = Wakeup()
        self._shut_down = False
        self._link = BucketLink(store, identity, clock=clock, rng=rng, on_change=self._wakeup.set)

    def shut_down(self) -> None:
        """The host is going away: end the command, say so, leave. Safe in a signal handler."""
        self._shut_down = True
        self._wakeup.set()

    def run(self) -> int:
        """Lives until the command's end is reported (on the bastion), or until shut down (on a VM).

        Returns:
            The agent's exit code: 0 if its last word is in the bucket.
        """
        if not self._state.open():
            _log.error("another agent of this host is alive (%s); it goes on, this one ends", self._state.folder)
            return EXIT_INFRASTRUCTURE
        try:
            earlier = self._until_stored(self._link.load_report)
            if self._shut_down:
                return EXIT_INFRASTRUCTURE
            if earlier is not None and earlier.token != self._identity.arguments.token:
                earlier = None
            self._link.start()
            final = earlier is not None and earlier.phase.final
            if final:
                self._store_rest_of_log()
            elif not self._settle(self._final_report(earlier)):
                return EXIT_INFRASTRUCTURE
            self._state.mark_reported()
            self._link.stop_polling()
            while not (self._identity.on_bastion or self._shut_down):
                self._wakeup.wait(3600.0)
            return 0
        finally:
            self._link.stop()
            self._state.close()

    def _final_report(self, earlier: Report | None) -> Report:
        if self._state.started:
            return self._after_restart()
        self._link.publish(self._report(HostPhase.WAITING))
        gate = Gate(
            self._store,
            self._identity,
            boot_id=self._boot_id,
            coordinator=self._choose_coordinator,
            reported_by_other_boot=earlier is not None and earlier.boot_id != self._boot_id,
        )
        passed = self._wait_at(gate)
        if isinstance(passed, Report):
            return passed
        ending = self._attempt(passed.coordinator).run()
        report = self._report(
            ending.phase,
            exit_code=ending.exit_code,
            error=ending.error,
            message=ending.message,
            started_at=ending.started_at,
            ended_at=ending.ended_at,
            checkpointed_at=ending.checkpointed_at,
        )
        self._keep(report)
        return report

    def _after_restart(self) -> Report:
        """An agent was here before and died, or the host booted again."""
        gone = end_leftovers(self._marker, grace_seconds=limits.FAILURE_GRACE_SECONDS)
        saved = self._state.outcome()
        self._store_rest_of_log(gap=saved is None)
        if saved is not None:
            return saved
        left = "" if gone else "; some of its processes could not be ended"
        return self._report(
            HostPhase.FAILED,
            error=host_errors.HOST_RESTARTED,
            message=f"the agent of this host started again after the command had begun; it does not run twice{left}",
            ended_at=self._clock.now(),
        )

    def _store_rest_of_log(self, *, gap: bool = False) -> None:
        """Uploads what an earlier agent left in the spool, and gives up only when the host is shut down.

        Args:
            gap: Whether output may be lost that had not come so far, which is then said.
        """
        log = self._log()
        try:
            log.open()
        except OSError as error:
            _log.warning("the spool of the log cannot be read, its rest is lost: %s", error)
            return
        if not gap and log.is_empty:
            return
        self._until_stored(log.go_on)
        if gap:
            log.gap("the agent of this host was restarted")
        log.close()
        log.start()
        deadline: float | None = None
        while not log.done:
            now = self._clock.monotonic()
            if self._shut_down and deadline is None:
                deadline = now + SHUTDOWN_FLUSH_SECONDS
            if deadline is not None and now >= deadline:
                log.abandon()
                return
            self._wakeup.wait(3600.0 if deadline is None else deadline - now)

    def _log(self) -> HostLog:
        return HostLog(
            self._store,
            self._identity,
            self._state.spool_dir,
            clock=self._clock,
            rng=self._rng,
            drop_noise=self._emulated and not self._identity.on_bastion,
            is_urgent=lambda: self._shut_down,
            on_change=self._wakeup.set,
        )

    def _wait_at(self, gate: Gate) -> Passage | Report:
        """Waits until the command may run, or until it is certain that it will not."""
        backoff = Backoff(self._rng)
        while True:
            delay = jittered(self._identity.arguments.poll_seconds, self._rng)
            order = self._link.order
            if self._shut_down:
                return self._never_ran(
                    HostPhase.STOPPED, host_errors.HOST_SHUT_DOWN, "the host was shut down before the command ran"
                )
            if order is not None and order.action is OrderAction.STOP:
                return self._never_ran(HostPhase.STOPPED, "", f"stopped before the command ran: {order.reason}")
            if self.order_lost:
                return self._never_ran(
                    HostPhase.FAILED, host_errors.ORDER_LOST, "the order could not be read for too long"
                )
            if order is not None:
                try:
                    passage = gate.look()
                    backoff.reset()
                except StoreError as error:
                    delay = backoff.next()
                    _log.warning("the gate could not be read, again in %.1f s: %s", delay, error)
                else:
                    if passage.verdict is Verdict.OPEN:
                        return passage
                    if passage.verdict is Verdict.REFUSED:
                        return self._never_ran(HostPhase.REFUSED, host_errors.GATE_CLOSED, passage.message)
                    if passage.verdict is Verdict.RESTARTED:
                        return self._never_ran(HostPhase.FAILED, host_errors.HOST_RESTARTED, passage.message)
            self._wakeup.wait(delay)

    @property
    def order_lost(self) -> bool:
        """Whether the order has not been seen for longer than this host may go on without it."""
        limit = self._identity.arguments.order_lost_seconds
        return limit > 0 and self._link.seconds_without_order >= limit

    def _attempt(self, coordinator_address: str) -> Attempt:
        return Attempt(
            self._identity,
            self._link,
            self._state,
            self._log(),
            clock=self._clock,
            rng=self._rng,
            wakeup=self._wakeup,
            base_environ=self._environ,
            boot_id=self._boot_id,
            marker=self._marker,
            coordinator=coordinator_address,
            emulated=self._emulated,
            interpreter=sys.executable,
            is_shut_down=lambda: self._shut_down,
            is_order_lost=lambda: self.order_lost,
            publish_running=lambda started_at, checkpointed_at: self._link.publish(
                self._report(HostPhase.RUNNING, started_at=started_at, checkpointed_at=checkpointed_at)
            ),
        )

    def _choose_coordinator(self) -> str:
        identity = self._identity
        if identity.on_bastion or not identity.peers:
            return ""
        return coordinator.choose(identity.peers[0], run=identity.arguments.run, emulated=self._emulated)

    def _never_ran(self, phase: HostPhase, error: str, message: str) -> Report:
        return self._report(phase, error=error, message=message, ended_at=self._clock.now())

    def _report(
        self,
        phase: HostPhase,
        *,
        exit_code: int | None = None,
        error: str = "",
        message: str = "",
        started_at: float | None = None,
        ended_at: float | None = None,
        checkpointed_at: float | None = None,
    ) -> Report:
        return Report(
            run=self._identity.arguments.run,
            host=self._identity.host,
            token=self._identity.arguments.token,
            boot_id=self._boot_id,
            phase=phase,
            exit_code=exit_code,
            error=error,
            message=message,
            started_at="" if started_at is None else instants.to_rfc3339(started_at),
            ended_at="" if ended_at is None else instants.to_rfc3339(ended_at),
            checkpointed_at="" if checkpointed_at is None else instants.to_rfc3339(checkpointed_at),
        )

    def _keep(self, report: Report) -> None:
        try:
            self._state.save_outcome(report)
        except OSError as error:
            # The report still goes to the bucket; only a crash before that would now lose it.
            _log.warning("the outcome could not be kept in %s: %s", self._state.folder, error)

    def _settle(self, report: Report) -> bool:
        """Publishes the final report and waits until it is stored; gives up only when the host is shut down."""
        self._link.publish(report)
        deadline: float | None = None
        while not self._link.settled:
            now = self._clock.monotonic()
            if self._shut_down and deadline is None:
                deadline = now + SHUTDOWN_REPORT_SECONDS
            if deadline is not None and now >= deadline:
                return False
            self._wakeup.wait(3600.0 if deadline is None else deadline - now)
        return True

    def _until_stored(self, operation: Callable[[], Report | None]) -> Report | None:
        """Repeats a store operation until it succeeds; gives up (None) only when the host is shut down."""
        backoff = Backoff(self._rng)
        while not self._shut_down:
            try:
                return operation()
            except StoreError as error:  # noqa: PERF203 - repeating is what the loop is for
                delay = backoff.next()
                _log.warning("the bucket did not answer, again in %.1f s: %s", delay, error)
                self._wakeup.wait(delay)
        return None


def state_dir_of(environ: Mapping[str, str]) -> Path:
    """Where a host keeps its local state."""
    return Path(environ.get(STATE_DIR) or "/var/lib/bastion")
