"""Prepare a host for a command: code, inputs, storage proxy, packages, earlier outputs, environment.

A method that returns an Ending on failure returns None on success.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from bastion.agent import rendezvous
from bastion.agent.backoff import Backoff
from bastion.agent.code.fetch import CodeDownload, CodeProblem
from bastion.agent.code.setup import setup_of, with_environment
from bastion.agent.command.ending import Ending
from bastion.agent.command.execution import Execution
from bastion.agent.command.secrets import SecretsReading
from bastion.agent.download import Download
from bastion.agent.environment import CommandEnvironment, HostFacts, command_environment
from bastion.agent.host_parts import HostParts
from bastion.agent.inputs.inputs_download import InputsDownload
from bastion.agent.inputs.problems import InputProblem
from bastion.agent.inputs.shown_progress import InputsProgress
from bastion.agent.logs.host_log import HostLog
from bastion.agent.outputs import host_outputs
from bastion.agent.outputs.place_check import OutputPlaceCheck, PlaceRefused
from bastion.agent.wait_notes import WaitNotes
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, Order
from bastion.core.errors import EXIT_NO_CODE, EXIT_REFUSED, SecretUnreadable, StoreError


class Preparation:
    def __init__(
        self, parts: HostParts, log: HostLog, execution: Execution, *, coordinator: str, hosts: tuple[str, ...]
    ) -> None:
        """`coordinator`, `hosts`: the addresses in the claim."""
        self._parts = parts
        self._log = log
        self._execution = execution
        self._secrets: dict[str, str] = {}
        self._facts = HostFacts(
            marker=parts.marker,
            preempt_file=str(parts.state.preempt_file),
            checkpoint_file=str(parts.state.checkpoint_file),
            step_file=str(parts.state.step_file),
            results_file=str(parts.state.results_file),
            coordinator=coordinator,
            emulated=parts.emulated,
            cpus=os.cpu_count() or 1,
            interpreter=parts.interpreter,
            hosts=hosts,
            hostfile=str(parts.state.hostfile),
        )

    def read_secrets(self, order: Order) -> Ending | None:
        """Read the values of the job's secrets, before anything that takes long."""
        if not order.secrets:
            return None
        parts = self._parts
        reading = SecretsReading(
            order.secrets,
            parts.secrets,
            backoff=self._backoff(),
            on_done=parts.wakeup.set,
            files=parts.state.files,
        )
        notes = WaitNotes(parts, self._log)
        try:
            ending = self._complete(reading, on_poll=lambda: notes.poll(reading.waiting_for))
        except SecretUnreadable as error:
            return self._execution.failed(host_errors.SECRET_UNREADABLE, str(error), exit_code=error.exit_code)
        self._secrets = reading.values
        return ending

    def fetch(self, order: Order) -> Ending | None:
        """Fetch code and inputs unless an earlier try did. Starts no process; another agent may go on after a kill."""

        def get() -> Ending | None:
            return self._check_output_place(order) or self._get_code(order) or self._get_inputs(order)

        return self._unless_prepared(get)

    def run(self, order: Order) -> Ending | None:
        """Prepare the host, after `fetch`, unless an earlier try did."""

        def prepare() -> Ending | None:
            self._write_hostfile()
            ending = self.wait_for_proxy(order) or self._set_up(order) or self._restore(order)
            if ending is None:
                self._parts.state.mark_prepared()
            return ending

        return self._unless_prepared(prepare)

    def _unless_prepared(self, step: Callable[[], Ending | None]) -> Ending | None:
        """Do a step of the preparation; return the ending that its problem means."""
        if self._parts.state.prepared:
            return None
        try:
            return step()
        except (CodeProblem, InputProblem) as problem:
            code = EXIT_NO_CODE if problem.error in host_errors.OF_THE_USER else None
            return self._execution.failed(problem.error, str(problem), exit_code=code)
        except PlaceRefused as problem:
            return self._execution.failed(host_errors.OUTPUT_REFUSED, str(problem), exit_code=EXIT_NO_CODE)
        except StoreError as error:
            return self._execution.failed(host_errors.HOST_FAILED, f"the outputs cannot be restored: {error}")
        except host_outputs.FolderBlocked as problem:
            return self._execution.failed(host_errors.SETUP_FAILED, str(problem), exit_code=EXIT_NO_CODE)
        except OSError as error:
            return self._execution.failed(host_errors.HOST_FAILED, f"disk error on the host: {error}")

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
        user = parts.command_user
        facts = replace(
            self._facts,
            output_dir="" if folder is None else str(folder),
            proxy=place,
            user="" if user is None else user.name,
            home=str(parts.state.home_dir),
            temporary=str(parts.state.temporary_dir),
        )
        environment = command_environment(parts.environ, order, parts.identity, facts, secrets=self._secrets)
        with parts.state.files():
            has_packages = parts.state.environment_dir.is_dir()
        if not has_packages:
            return environment
        return replace(environment, variables=with_environment(environment.variables, parts.state.environment_dir))

    def _write_hostfile(self) -> None:
        if self._parts.identity.gpus:
            text = rendezvous.hostfile_text(self._parts.identity, self._facts.hosts)
            with self._parts.state.files():
                self._parts.state.hostfile.write_text(text, "utf-8")

    def _get_code(self, order: Order) -> Ending | None:
        parts = self._parts
        with parts.state.files():
            if not order.code or parts.state.work_dir.exists():
                parts.state.work_dir.mkdir(exist_ok=True)
                return None
        parts.reporter.publish(HostPhase.PREPARING)
        download = CodeDownload(
            order,
            parts.state.work_dir,
            parts.fetch,
            root=parts.identity.arguments.root,
            backoff=self._backoff(),
            on_done=parts.wakeup.set,
            files=parts.state.files,
        )
        notes = WaitNotes(parts, self._log)
        return self._complete(download, on_poll=lambda: notes.poll(download.waiting_for))

    def _check_output_place(self, order: Order) -> Ending | None:
        """Find out now, rather than at the end of the work, that nothing can be stored."""
        parts = self._parts
        if not order.output_to:
            return None
        parts.reporter.publish(HostPhase.PREPARING)
        check = OutputPlaceCheck(
            order.output_to,
            lambda: host_outputs.place_of(parts, order, parts.identity.host),
            rng=parts.rng,
            last_seconds=max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6)),
            on_done=parts.wakeup.set,
        )
        notes = WaitNotes(parts, self._log, f"looking whether outputs can be stored at --output_to={order.output_to}")
        return self._complete(check, on_poll=lambda: notes.poll(check.waiting_for))

    def _get_inputs(self, order: Order) -> Ending | None:
        if not order.inputs:
            return None
        download = InputsDownload(self._parts, order)
        shown = InputsProgress(self._parts, self._log, download)
        ending = self._complete(download, on_poll=shown.poll)
        shown.log_notes()
        return ending

    def _set_up(self, order: Order) -> Ending | None:
        state = self._parts.state
        with state.files():
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
        with self._parts.state.files():
            host_outputs.create(folder)
        download = host_outputs.download(self._parts, order, folder)
        ending = self._complete(download)
        if ending is None:
            for line in host_outputs.describe(download.restored):
                self._log.note(line)
        return ending

    def _backoff(self) -> Backoff:
        poll_seconds = self._parts.identity.arguments.poll_seconds
        return Backoff(self._parts.rng, last_seconds=max(1.0, min(30.0, poll_seconds * 6)))

    def _complete(self, download: Download, *, on_poll: Callable[[], None] = lambda: None) -> Ending | None:
        """Run a download; raise its problem."""

        def is_done() -> bool:
            on_poll()
            return download.done

        download.start()
        stop = self._execution.wait_unless_stopped(is_done)
        if stop is not None:
            download.cancel()
            return self._execution.stopped(stop)
        if download.problem is not None:
            raise download.problem
        return None
