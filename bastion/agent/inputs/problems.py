"""Why an input is not there; and which errors of a store are worth another try."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from random import Random
from typing import TypeVar

from bastion.agent.backoff import Backoff
from bastion.agent.download import Cancelled
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.disk_limit import shown
from bastion.core.errors import AccessDenied, Refused, StoreError, StoreUnavailable

T = TypeVar("T")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class InputProblem(Exception):
    """An input is not there. `error` is one of `bastion.core.bucket.host_errors`; the text is for users."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


def unreadable(url: str, error: Exception) -> InputProblem:
    return InputProblem(host_errors.INPUT_MISSING, f"the input {url} cannot be read: {error}")


def changed(url: str, path: str, why: str) -> InputProblem:
    return InputProblem(
        host_errors.INPUT_CHANGED,
        f"the input {url} changed while it was fetched: {path} {why}; launch the job again when nothing writes there",
    )


def full(folder: str) -> InputProblem:
    return InputProblem(
        host_errors.DISK_LIMIT,
        f"no space left on device: the job's inputs do not fit on the disk of {folder}; use a host with a larger "
        "disk, or fetch less",
    )


def too_large(needed: int, free: int, what: str) -> InputProblem:
    return InputProblem(
        host_errors.DISK_LIMIT,
        f"the job's inputs need {shown(needed)} of disk, and {shown(free)} {what}; nothing was fetched; use a host "
        "with a larger disk, or fetch less",
    )


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


class Patience:
    """Repeats what a store does not answer, for ever; and what it refuses after it has allowed the same, for a while.

    Attributes:
        waiting_for: Why it waits now; empty if it does not.
    """

    def __init__(
        self,
        rng: Random,
        cancelled: threading.Event,
        *,
        last_seconds: float,
        refused_max_seconds: float = limits.REFUSED_MAX_SECONDS,
    ) -> None:
        self._rng = rng
        self._cancelled = cancelled
        self._last_seconds = last_seconds
        self._refused_max_seconds = refused_max_seconds
        self._read: set[str] = set()
        self.waiting_for = ""

    def call(self, url: str, operation: Callable[[], T]) -> T:
        """Raises Cancelled; InputProblem for every other error of the input's store."""
        try:
            return self._repeat(operation, StoreUnavailable)
        except (StoreError, Refused, ValueError) as error:  # ValueError: a key that no store can hold
            raise unreadable(url, error) from error

    def read(self, url: str, operation: Callable[[], T]) -> T:
        """Read an object of an input: a bucket's refusal is waited for if an earlier read of this input was allowed.

        Raises as `call`.
        """
        refused_since: float | None = None

        def once() -> T:
            nonlocal refused_since
            try:
                return operation()
            except AccessDenied as error:
                now = time.monotonic()
                refused_since = now if refused_since is None else refused_since
                if url not in self._read or now - refused_since >= self._refused_max_seconds:
                    raise
                raise StoreUnavailable(str(error)) from error

        result = self.call(url, once)
        if url.startswith(("gs://", "s3://")):  # permissions in a folder do not come back by themselves
            self._read.add(url)
        return result

    def in_own(self, operation: Callable[[], T]) -> T:
        """The same in the bastion's own bucket, whose refusals are not the job's fault: they are waited for, too."""
        return self._repeat(operation, StoreError)

    def _repeat(self, operation: Callable[[], T], after: type[StoreError]) -> T:
        backoff = Backoff(self._rng, last_seconds=self._last_seconds)
        while not self._cancelled.is_set():
            try:
                result = operation()
            except after as error:  # noqa: PERF203 - the loop is a retry
                self.waiting_for = str(error)
                self._cancelled.wait(backoff.next())
            else:
                self.waiting_for = ""
                return result
        raise Cancelled
