"""One host of one attempt: wait for the gate, run the command, report its end, wait for another try.

This is the loop that decides. It never waits for a network: threads talk to the bucket (`bucket_link`), upload the
output (`logs`), and watch the metadata server (`vm_notices`) and the daemon's lease (`power`).

Invariants:
* A try begins at most once on a host, in order, and only behind a claim of this run. If the agent dies
  during a try, the host begins no other; before anything of it ran, another agent goes on with it.
* A running command ends by itself or for a reason in `stop_reasons`.
* No try begins beside processes of an earlier one that could not be ended.
* The final report of a try is written once, after its last log segment. Both are retried forever, unless the host shuts
  down.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from bastion import processes
from bastion.agent import coordinator, power
from bastion.agent.backoff import Backoff, jittered
from bastion.agent.bucket_link import BucketLink
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.code.fetch import Fetch
from bastion.agent.command.ending import may_be_followed
from bastion.agent.command.one_try import PROXY_LOG_SECONDS, OneTry
from bastion.agent.command.process import end_orphans
from bastion.agent.command_user import CommandUser
from bastion.agent.environment import BOOT_ID, EMULATED_TPU, STATE_DIR
from bastion.agent.gate import Gate, GateVerdict, Passage
from bastion.agent.host_parts import HostParts, OpenBucket
from bastion.agent.host_state import HostState
from bastion.agent.identity import HostIdentity
from bastion.agent.left_to_store import LeftToStore
from bastion.agent.logs.host_log import HostLog
from bastion.agent.logs.spool import SPOOL_MAX_BYTES
from bastion.agent.power import IdleWatch
from bastion.agent.reports import Reporter
from bastion.agent.sidecar import place, sidecar
from bastion.agent.sidecar.sidecar import Sidecar, SidecarTimes
from bastion.agent.stop_reasons import Stop, StopReasons
from bastion.agent.time_limit import TimeLimit
from bastion.agent.vm_notices import VmNotices
from bastion.agent.waits import FOREVER, Waits
from bastion.agent.wakeup import Wakeup
from bastion.core import limits
from bastion.core.bucket import host_errors, keys
from bastion.core.bucket.markers import command_marker
from bastion.core.bucket.protocol import HostPhase, OrderAction, Report
from bastion.core.errors import EXIT_INFRASTRUCTURE, StoreError
from bastion.ports import Clock, ObjectStore, SecretSource

_log = logging.getLogger(__name__)

# A VM that shuts down has some seconds; half of them are for the report.
SHUTDOWN_REPORT_SECONDS = 3.0


def _last_ended(kept: Report | None) -> int:
    """The try that a kept outcome tells the end of; 0: none. WAITING is about the next one."""
    if kept is None:
        return 0
    return kept.try_number if kept.phase.final else kept.try_number - 1


class Host:
    """One host's agent. `shut_down` may be called from a signal handler."""

    def __init__(
        self,
        identity: HostIdentity,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: Random,
        environ: Mapping[str, str],
        state_dir: Path,
        fetch: Fetch,
        secrets: Mapping[str, SecretSource],
        open_bucket: OpenBucket,
        notices: VmNotices | None = None,
        power_off: Callable[[], None] | None = None,
        proxy_program: Sequence[str] = sidecar.PROGRAM,
        proxy_times: SidecarTimes | None = None,
        command_user: CommandUser | None = None,
    ) -> None:
        """Make the agent's parts; `run` starts them.

        Args:
            secrets: Sources of secrets by the scheme of their references.
            notices: The cloud's notices about this VM, if it is one.
            power_off: Ends the VM; the default depends on `environ`. An agent that may leave shuts itself down instead.
            command_user: Whom commands run as; None: as the agent.
            proxy_program: Runs beside the command if the order asks for a proxy.
        """
        arguments = identity.arguments
        if arguments.leave_when_done:
            power_off = power_off or self.shut_down
        wakeup = Wakeup()
        link = BucketLink(store, identity, clock=clock, rng=rng, on_change=wakeup.set)
        boot_id = identity.boot_id or environ.get(BOOT_ID) or processes.boot_id()
        idle: IdleWatch | None = None
        if arguments.power_off_seconds > 0 and not identity.on_bastion:
            idle = IdleWatch(
                store,
                limit_seconds=arguments.power_off_seconds,
                clock=clock,
                rng=rng,
                power_off=power_off or (lambda: power.power_off(environ)),
            )
        self._notices = notices
        self._command_user = command_user = command_user or CommandUser()
        state = HostState(state_dir, run=arguments.run, host=identity.host, is_shared=command_user.user is not None)
        time_limit = self._time_limit = TimeLimit(link, state, boot_id=boot_id, clock=clock)
        emulated = environ.get(EMULATED_TPU) == "1"
        # Process listings show it: of the public key.
        marker = command_marker(arguments.run, identity.host, identity.run_key.public)
        child_processes = ChildProcesses()
        self._parts = HostParts(
            identity=identity,
            store=store,
            link=link,
            state=state,
            reporter=Reporter(identity, boot_id=boot_id, publish=link.publish),
            reasons=StopReasons(identity, link, notices, clock=clock, time_limit=time_limit),
            idle=idle,
            wakeup=wakeup,
            clock=clock,
            rng=rng,
            environ=dict(environ),
            boot_id=boot_id,
            marker=marker,
            emulated=emulated,
            interpreter=arguments.interpreter or sys.executable,
            fetch=fetch,
            secrets=secrets,
            job_user=command_user.user,
            note=command_user.note,
            open_bucket=open_bucket,
            open_log=self._new_log,
            child_processes=child_processes,
            sidecar=Sidecar(
                place.place_of(identity, state.folder.absolute(), emulated=emulated),
                program=proxy_program,
                environ=dict(environ),
                marker=marker,
                child_processes=child_processes,
                open_log=self._new_proxy_log,
                rng=rng,
                on_change=wakeup.set,
                times=proxy_times or SidecarTimes(),
            ),
        )
        self._identity = identity
        self._link = link
        self._state = self._parts.state
        self._reasons = self._parts.reasons
        self._reporter = self._parts.reporter
        self._wakeup = wakeup
        self._clock = clock
        self._rng = rng
        self._waits = Waits(self._reasons, wakeup, clock=clock, rng=rng)
        self._left = LeftToStore(self._parts, self._waits, open_proxy_log=lambda: self._new_proxy_log(wakeup.set))
        self._left_behind = False  # processes of an earlier try
        self.last_report: Report | None = None

    def shut_down(self) -> None:
        """End the command because the host shuts down. Safe in a signal handler."""
        self._reasons.begin_shutdown()
        self._wakeup.set()

    def run(self) -> int:
        """Run until the command's end is reported (on the bastion, or with `leave_when_done`) or the host shuts down.

        Returns the agent's exit code: 0 if its last report is in the bucket.
        """
        if not self._state.open():
            _log.error("another agent of this host is already running (%s); exiting", self._state.folder)
            return EXIT_INFRASTRUCTURE
        try:
            if self._parts.idle is not None:
                self._parts.idle.start()  # first: the bucket may never answer
            earlier = self._waits.until_answered(self._link.load_report)
            if self._reasons.shut_down:
                return EXIT_INFRASTRUCTURE
            self._start_threads()
            return self._run_tries(earlier)
        finally:
            self._stop_threads()
            self._state.close()

    def _start_threads(self) -> None:
        self._link.start()
        if self._notices is not None:
            self._notices.start(self._wakeup.set)

    def _stop_threads(self) -> None:
        self._parts.sidecar.abandon()
        self._link.stop()
        if self._notices is not None:
            self._notices.stop()
        if self._parts.idle is not None:
            self._parts.idle.stop()

    def _run_tries(self, earlier: Report | None) -> int:
        """Run tries until this host's last report is stored; return the exit code. `earlier`: an earlier agent's."""
        report = self._known_end(earlier)
        if report is None:
            kept = self._state.outcome()
            first = 1 if kept is None else kept.try_number
            report = self._try(first, booted_again=self._is_of_other_boot(earlier))
        while True:
            self.last_report = report
            if report != earlier and not self._store_report(report):
                return EXIT_INFRASTRUCTURE
            self._state.mark_reported()
            number = self._next_try(report)
            if number is None:
                return 0
            report = self._try(number, booted_again=self._is_of_other_boot(report))

    def _is_of_other_boot(self, report: Report | None) -> bool:
        return report is not None and report.boot_id != self._parts.boot_id

    def _known_end(self, earlier: Report | None) -> Report | None:
        """The final report that follows from an earlier agent's state; None if there is a try to run."""
        started, kept = self._state.started, self._state.outcome()
        if earlier is not None and earlier.phase.final and earlier.try_number >= started:
            self._left.store_log()
            return earlier
        if started > _last_ended(kept):
            return self._after_restart(started)
        if kept is not None and kept.phase.final:
            self._end_orphans()
            self._left.store_outputs()
            self._left.store_results(kept.try_number, kept.exit_code if kept.phase is HostPhase.EXITED else None)
            self._left.store_log()
            return kept
        return None

    def _after_restart(self, number: int) -> Report:
        """The report of a host whose agent died during that try, or that rebooted."""
        gone = self._end_orphans()
        self._parts.sidecar.end_orphan()
        self._left.store_outputs()
        self._left.store_results(number, None)
        self._left.store_log(gap=True)
        left = "" if gone else "; some of its processes could not be stopped"
        self._reporter.try_number = number
        return self._reporter.make(
            HostPhase.FAILED,
            error=host_errors.HOST_RESTARTED,
            message=f"the agent restarted after the command had begun; a try never runs twice{left}",
            ended_at=self._clock.now(),
        )

    def _end_orphans(self) -> bool:
        parts = self._parts
        return end_orphans(
            parts.marker, parts.job_user or parts.command_user, grace_seconds=limits.FAILURE_GRACE_SECONDS
        )

    def _try(self, number: int, *, booted_again: bool) -> Report:
        """Wait for the order to run this try or a later one, and run it; return the last report."""
        self._reporter.try_number = number
        if self._left_behind:
            return self._not_ended()
        gate = Gate(
            self._parts.store,
            self._identity,
            boot_id=self._parts.boot_id,
            coordinator=self._choose_coordinator,
            reported_by_other_boot=booted_again,
        )
        while True:
            self._reporter.publish(HostPhase.WAITING)
            passed = self._wait_at(gate)
            if isinstance(passed, Report):
                if self._state.started:
                    self._left.store_log()  # of the try before
                return passed
            report = self._run_try(passed)
            self._state.keep_outcome(report)
            if report.phase is not HostPhase.WAITING:
                return report

    def _run_try(self, passed: Passage) -> Report:
        """Run a try after the gate opened; return WAITING for the next one if that was ordered meanwhile."""
        order = self._link.order
        if self._command_user.problem and not (order is not None and order.root):
            return self._never_ran(HostPhase.FAILED, host_errors.HOST_FAILED, self._command_user.problem)
        log = self._parts.open_log()
        try:
            log.open()
        except OSError as error:
            return self._never_ran(HostPhase.FAILED, host_errors.HOST_FAILED, f"disk error on the host: {error}")
        if self._state.started:
            self._waits.until_answered(log.go_on)
        if self._parts.idle is not None:
            self._parts.idle.busy()
        ending = OneTry(self._parts, log, coordinator=passed.coordinator, hosts=passed.hosts).run()
        self._left_behind = not ending.gone
        if ending.phase is HostPhase.WAITING:
            if self._left_behind:
                return self._not_ended()
            self._reporter.try_number += 1
            return self._reporter.make(HostPhase.WAITING)
        return self._reporter.make(
            ending.phase,
            exit_code=ending.exit_code,
            error=ending.error,
            message=ending.message,
            started_at=ending.started_at,
            ended_at=ending.ended_at,
            progress=ending.progress,
        )

    def _wait_at(self, gate: Gate) -> Passage | Report:
        """Wait at the gate until the try may run, or until it is certain that it never will."""
        backoff = Backoff(self._rng)
        poll_seconds = self._identity.arguments.poll_seconds
        gathering = Backoff(self._rng, first_seconds=poll_seconds / 10, last_seconds=poll_seconds)
        awaited = ""
        while True:
            delay = jittered(poll_seconds, self._rng)
            order, stop = self._link.order, self._reasons.of_try(self._reporter.try_number)
            if stop is not None and stop.phase is not HostPhase.WAITING:
                return self._stopped_before(stop)
            if order is not None and order.try_number > self._reporter.try_number:
                self._reporter.try_number = order.try_number
                self._reporter.publish(HostPhase.WAITING)
            ordered = order is not None and order.try_number == self._reporter.try_number
            if order is not None and ordered and order.action is OrderAction.RUN:
                try:
                    passage = gate.look()
                    backoff.reset()
                except StoreError as error:
                    delay = backoff.next()
                    _log.warning("the gate could not be read; retrying in %.1f s: %s", delay, error)
                else:
                    if passage.verdict is GateVerdict.OPEN:
                        self._time_limit.passed_gate()
                        return passage
                    if passage.verdict is GateVerdict.REFUSED:
                        return self._never_ran(HostPhase.REFUSED, host_errors.GATE_CLOSED, passage.message)
                    if passage.verdict is GateVerdict.RESTARTED:
                        return self._never_ran(HostPhase.FAILED, host_errors.HOST_RESTARTED, passage.message)
                    if passage.message != awaited:
                        awaited = passage.message
                        _log.info("the gate is shut: %s", awaited)
                    if awaited:
                        delay = gathering.next()
            self._wakeup.wait(self._reasons.next_look(delay))

    def _next_try(self, report: Report) -> int | None:
        """Wait for the order of another try; None if none will come, or the host need not stay for it."""
        number = report.try_number
        while not (self._identity.on_bastion or self._reasons.shut_down):
            order = self._link.order
            if not may_be_followed(report.phase, report.error) or (
                order is not None and (order.action is OrderAction.STOP or order.is_last(number))
            ):
                self._link.stop_polling()
                self._parts.sidecar.end()
                if self._identity.arguments.leave_when_done:
                    self._waits.until(lambda: self._parts.sidecar.done, at_most_seconds=PROXY_LOG_SECONDS)
                    return None
            elif order is not None and order.try_number > number:
                return order.try_number
            self._wakeup.wait(FOREVER)
        return None

    def _new_log(self) -> HostLog:
        return self._log_of("worker", self._state.spool_dir, SPOOL_MAX_BYTES, self._wakeup.set)

    def _new_proxy_log(self, on_change: Callable[[], None]) -> HostLog:
        return self._log_of("proxy", self._state.proxy_spool_dir, limits.PROXY_LOG_SPOOL_MAX_BYTES, on_change)

    def _log_of(self, source: keys.LogSource, folder: Path, most: int, on_change: Callable[[], None]) -> HostLog:
        return HostLog(
            self._parts.store,
            self._identity,
            folder,
            clock=self._clock,
            rng=self._rng,
            drop_noise=source == "worker" and self._parts.emulated and not self._identity.on_bastion,
            is_urgent=lambda: self._reasons.urgent,
            on_change=on_change,
            capacity_bytes=most,
            source=source,
        )

    def _choose_coordinator(self) -> str:
        identity = self._identity
        if identity.on_bastion or not identity.peers:
            return ""
        # Only host 0 chooses, and publishes its own address.
        return coordinator.choose(
            identity.address,
            run=identity.arguments.run,
            emulated=self._parts.emulated,
            gpus=bool(identity.gpus),
        )

    def _stopped_before(self, stop: Stop) -> Report:
        return self._never_ran(stop.phase, stop.error, f"before the command started: {stop.message}")

    def _not_ended(self) -> Report:
        self._left.store_log()
        message = "processes of the last try could not be ended, and no other try may run beside them"
        return self._never_ran(HostPhase.FAILED, host_errors.HOST_FAILED, message)

    def _never_ran(self, phase: HostPhase, error: str, message: str) -> Report:
        return self._reporter.make(phase, error=error, message=message, ended_at=self._clock.now())

    def _store_report(self, report: Report) -> bool:
        """Publish the final report and wait until it is stored; give up only at shutdown."""
        self._link.publish(report)
        return self._waits.until(lambda: self._link.settled, at_most_seconds_if_shut_down=SHUTDOWN_REPORT_SECONDS)


def state_dir_of(environ: Mapping[str, str]) -> Path:
    return Path(environ.get(STATE_DIR) or "/var/lib/bastion")
