"""Prepare a host for a command: code, storage proxy, packages, earlier outputs, environment.

A method that returns an Ending on failure returns None on success.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bastion.agent.backoff import Backoff
from bastion.agent.code.fetch import CodeDownload, CodeProblem
from bastion.agent.code.setup import setup_of, with_environment
from bastion.agent.command.ending import Ending
from bastion.agent.command.execution import Execution
from bastion.agent.download import Download
from bastion.agent.environment import CommandEnvironment, HostFacts, command_environment
from bastion.agent.host_parts import HostParts
from bastion.agent.logs.host_log import HostLog
from bastion.agent.outputs import host_outputs
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Order
from bastion.core.errors import EXIT_NO_CODE, EXIT_REFUSED


class Preparation:
    def __init__(self, parts: HostParts, log: HostLog, execution: Execution, *, coordinator: str) -> None:
        """`coordinator`: the address in the claim."""
        self._parts = parts
        self._log = log
        self._execution = execution
        self._facts = HostFacts(
            marker=parts.marker,
            preempt_file=str(parts.state.preempt_file),
            checkpoint_file=str(parts.state.checkpoint_file),
            coordinator=coordinator,
            emulated=parts.emulated,
            cpus=os.cpu_count() or 1,
            interpreter=parts.interpreter,
        )

    def run(self, order: Order) -> Ending | None:
        """Prepare the host unless an earlier try did."""
        if self._parts.state.prepared:
            return None
        try:
            ending = self._get_code(order) or self.wait_for_proxy(order) or self._set_up(order) or self._restore(order)
            if ending is None:
                self._parts.state.mark_prepared()
        except CodeProblem as problem:
            code = EXIT_NO_CODE if problem.error in host_errors.OF_THE_USER else None
            return self._execution.failed(problem.error, str(problem), exit_code=code)
        except host_outputs.FolderBlocked as problem:
            return self._execution.failed(host_errors.SETUP_FAILED, str(problem), exit_code=EXIT_NO_CODE)
        except OSError as error:
            return self._execution.failed(host_errors.HOST_FAILED, f"disk error on the host: {error}")
        return ending

    def wait_for_proxy(self, order: Order) -> Ending | None:
        """Wait until the storage proxy serves, if the job has one."""
        sidecar = self._parts.sidecar
        if not order.proxy or sidecar.serves:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        stop = self._execution.wait_unless_stopped(lambda: sidecar.settled)
        self._execution.log_proxy_notes()
        if stop is not None:
            return self._execution.stopped(stop)
        problem = sidecar.problem
        if problem is None:
            return None
        code = EXIT_REFUSED if problem.error in host_errors.OF_THE_USER else None
        return self._execution.failed(problem.error, problem.message, exit_code=code)

    def environment(self, order: Order) -> CommandEnvironment:
        """The command's environment, with the job's own packages."""
        parts = self._parts
        folder = host_outputs.folder_of(parts, order)
        place = parts.sidecar.place if order.proxy else None
        facts = replace(self._facts, output_dir="" if folder is None else str(folder), proxy=place)
        environment = command_environment(parts.environ, order, parts.identity, facts)
        if not parts.state.environment_dir.is_dir():
            return environment
        return replace(environment, variables=with_environment(environment.variables, parts.state.environment_dir))

    def _get_code(self, order: Order) -> Ending | None:
        parts = self._parts
        if not order.code or parts.state.work_dir.exists():
            parts.state.work_dir.mkdir(exist_ok=True)
            return None
        parts.reporter.publish(HostPhase.PREPARING)
        backoff = Backoff(parts.rng, last_seconds=max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6)))
        download = CodeDownload(order, parts.state.work_dir, parts.fetch, backoff=backoff, on_done=parts.wakeup.set)
        return self._complete(download)

    def _set_up(self, order: Order) -> Ending | None:
        state = self._parts.state
        setup = setup_of(order, state.work_dir, state.environment_dir)
        if setup is None:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        self._log.note(f"setup: {setup.title}")
        variables = with_environment(self.environment(order).variables, state.environment_dir)
        try:
            done = self._execution.run(setup.line, variables, state.work_dir)
        except (OSError, ValueError) as error:
            raise CodeProblem(host_errors.SETUP_FAILED, f"{setup.label} could not be started: {error}") from error
        if done.stop is not None:
            return self._execution.stopped(done.stop, done)
        if done.exit_code != 0:
            message = f"{setup.label} exited with code {done.exit_code}; see the job's log{setup.advice}"
            return self._execution.failed(host_errors.SETUP_FAILED, message, exit_code=done.exit_code)
        return None

    def _restore(self, order: Order) -> Ending | None:
        folder = host_outputs.folder_of(self._parts, order)
        if folder is None:
            return None
        self._parts.reporter.publish(HostPhase.PREPARING)
        host_outputs.create(folder)
        download = host_outputs.download(self._parts, order, folder)
        ending = self._complete(download)
        if ending is None:
            for line in host_outputs.describe(download.restored):
                self._log.note(line)
        return ending

    def _complete(self, download: Download) -> Ending | None:
        """Run a download; raise its problem."""
        download.start()
        stop = self._execution.wait_unless_stopped(lambda: download.done)
        if stop is not None:
            download.cancel()
            return self._execution.stopped(stop)
        if download.problem is not None:
            raise download.problem
        return None
