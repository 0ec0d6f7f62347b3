"""Store what a host's command measured in one try, once the command has ended.

Invariants:
* A job that measures nothing costs no request and starts no process.
* A thread asks the command's Python and waits for the bucket; the host's loop only reads the files.
* Results of an earlier attempt never replace those of a later one (`bastion.core.bucket.results.replaces`).
* What proves no attempt of the job keeps nobody from storing, whenever it was written.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from bastion.agent.backoff import Backoff
from bastion.agent.host_parts import HostParts
from bastion.agent.results import facts, files, packages
from bastion.core import limits
from bastion.core.bucket import keys, result_proofs, results
from bastion.core.bucket.keys import Run
from bastion.core.bucket.protocol import Order
from bastion.core.bucket.result_proofs import UnprovedResults
from bastion.core.bucket.results import HostResults
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the files of a try hold; `problems` are for the job's log, too."""

    lines: list[str]
    mllog: list[str]
    truncated: bool
    problems: list[str]


def look(parts: HostParts) -> Measured | None:
    """Read the results file and the kept MLLOG lines; None if the command measured nothing."""
    with parts.state.files():
        written = files.read(parts.state.results_file, "BASTION_RESULTS_FILE", files.Lines())
    logged = files.read(parts.state.mllog_file, "MLLOG lines of the output", written.rest())
    if not (written.kept or logged.kept or written.problems or logged.problems):
        return None
    return Measured(
        lines=written.kept,
        mllog=logged.kept,
        truncated=written.truncated or logged.truncated,
        problems=[*written.problems, *logged.problems],
    )


def begin(
    parts: HostParts, order: Order, *, variables: Mapping[str, str], try_number: int, exit_code: int | None
) -> ResultsUpload | None:
    """Begin to store what the command of a try measured; None if there is nothing.

    Args:
        variables: The command's.
        exit_code: Its exit code if it ended by itself.
    """
    run = Run.parse(parts.identity.arguments.run)
    # A cleanup command measures nothing.
    measured = look(parts) if run is not None and run.attempt > 0 else None
    if run is None or measured is None:
        return None
    upload = ResultsUpload(
        parts, order, measured, run=run, variables=variables, try_number=try_number, exit_code=exit_code
    )
    upload.start()
    return upload


class ResultsUpload:
    """One try's results on their way to the bucket.

    Attributes:
        done: The thread has ended.
        stored: What the bucket has is right: these results, or others that count more.
        storage_error: Why they could not be stored last.
    """

    def __init__(
        self,
        parts: HostParts,
        order: Order,
        measured: Measured,
        *,
        run: Run,
        variables: Mapping[str, str],
        try_number: int,
        exit_code: int | None,
    ) -> None:
        self._parts = parts
        self._order = order
        self._measured = measured
        self._run = run
        self._variables = variables
        self._try = try_number
        self._exit_code = exit_code
        self._backoff = Backoff(parts.rng, last_seconds=max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6)))
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name="results", daemon=True)
        self.done = False
        self.stored = False
        self.storage_error = ""
        self._key = keys.results(parts.identity.arguments.job, run.uid, parts.identity.host)
        self._document: HostResults
        self._generation = 0  # of what is in the bucket

    @property
    def problems(self) -> list[str]:
        """What the command will want to know about its results, for the job's log."""
        return self._measured.problems

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """End the thread after the current operation."""
        self._abandoned.set()

    def _work(self) -> None:
        try:
            self._document = self._make()
            self._store()
        finally:
            self.done = True
            self._parts.wakeup.set()

    def _make(self) -> HostResults:
        parts, measured = self._parts, self._measured
        where = facts.of_host(
            parts.identity,
            self._order,
            self._variables,
            environ=parts.environ,
            emulated=parts.emulated,
            run_folder=parts.state.folder.absolute(),
        )
        with parts.state.files():
            interpreter = packages.interpreter_of(
                self._order.command, self._variables.get("PATH", os.defpath), parts.state.work_dir
            )
        known = packages.ask(
            interpreter,
            self._variables,
            parts.child_processes,
            give_up=lambda: parts.reasons.urgent or self._abandoned.is_set(),
            seconds=limits.RESULTS_ASK_SECONDS,
            user=parts.command_user,
        )
        return HostResults(
            attempt=self._run.attempt,
            try_number=self._try,
            exit_code=self._exit_code,
            lines=measured.lines,
            mllog=measured.mllog,
            truncated=measured.truncated,
            problems=[*measured.problems, *filter(None, [known.problem])],
            environment=where.model_copy(update={"python": known.python, "libraries": known.libraries}),
        )

    def _store(self) -> None:
        while not self._abandoned.is_set():
            try:
                self._put()
                self.stored = True
                # Until the host is gone, others may write over it.
                self._parts.link.also_look(self._look_again)
                return
            except StoreError as error:  # noqa: PERF203 - the loop is a retry
                self.storage_error = str(error)
                delay = self._backoff.next()
                _log.warning("the results could not be stored; retrying in %.1f s: %s", delay, error)
                self._abandoned.wait(delay)

    def _look_again(self) -> None:
        """Store the results again if something else is in their place. Raises StoreError."""
        meta = self._parts.store.head(self._key)
        if meta is None or meta.generation != self._generation:
            _log.warning("%s is not what this host wrote; looking whether to write it again", self._key)
            self._put()

    def _put(self) -> None:
        """Store the results unless others are there that count more. Raises StoreError."""
        document = self._document
        stored, self._generation = self._found()
        if stored is None or results.replaces(document, stored):
            data = result_proofs.to_bytes(document, self._key, self._parts.identity.run_key)
            self._generation = self._parts.store.put(self._key, data, generation=self._generation).generation

    def _found(self) -> tuple[HostResults | None, int]:
        """What is stored, if an attempt of the job wrote it, and its generation. Raises StoreError."""
        store = self._parts.store
        meta = store.head(self._key)
        if meta is None:
            return None, 0
        try:
            found = store.get(self._key, max_bytes=limits.RESULTS_DOCUMENT_MAX_BYTES)
            return result_proofs.read(self._key, found.data, self._public_key_of), found.meta.generation
        except UnprovedResults as error:
            if self._may_be_later(error.results.attempt):
                return error.results, meta.generation
            _log.warning("the results in %s %s; writing over them", self._key, error)
        except (InvalidDocument, NotFound, ObjectTooLarge) as error:
            _log.warning("the results in %s are nobody's: %s", self._key, error)
        return None, meta.generation

    def _public_key_of(self, attempt: int) -> str | None:
        if attempt == self._run.attempt:
            return self._parts.identity.run_key.public
        return self._order.proofs.get(str(Run(self._run.uid, attempt)))

    def _may_be_later(self, attempt: int) -> bool:
        """Whether there is such a later attempt, whose key this host does not know: the daemon alone writes orders.

        Then this host is late, and must not write over it. Raises StoreError.
        """
        later = str(Run(self._run.uid, attempt))
        return attempt > self._run.attempt and self._parts.store.head(keys.order(later)) is not None
