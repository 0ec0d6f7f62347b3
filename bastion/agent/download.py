"""A download in a thread of its own, so that the host's loop still sees stop orders."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from bastion.agent.backoff import Backoff
from bastion.core.errors import StoreError

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Cancelled(Exception):
    """The caller no longer needs the result."""


class Download(ABC):
    """A download that can be cancelled.

    Attributes:
        done: Whether the thread has ended.
        problem: Why there is no result; None after a success.
        waiting_for: Why a store does not answer now; empty if it does.
    """

    def __init__(
        self, name: str, *, failure: Exception, expected: type[Exception], backoff: Backoff, on_done: Callable[[], None]
    ) -> None:
        """Prepare the thread; `start` starts it.

        Args:
            name: What is downloaded, for log lines.
            failure: The problem if the thread dies of an error that is not `expected`.
            on_done: Called in the thread once `done` is true.
        """
        self._name = name
        self._expected = expected
        self._backoff = backoff
        self._on_done = on_done
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._work, name="download", daemon=True)
        self.done = False
        self.problem: Exception | None = failure
        self._waiting_for = ""

    @property
    def waiting_for(self) -> str:
        return self._waiting_for

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Cancel after the current piece."""
        self._cancelled.set()

    @abstractmethod
    def _download(self) -> None: ...

    def _retry(self, operation: Callable[[], T]) -> T:
        """Retry a store operation forever. Raises Cancelled."""
        while not self._cancelled.is_set():
            try:
                result = operation()
            except StoreError as error:  # noqa: PERF203 - the loop is a retry
                self._waiting_for = str(error)
                delay = self._backoff.next()
                _log.warning("%s could not be fetched; retrying in %.1f s: %s", self._name, delay, error)
                self._cancelled.wait(delay)
            else:
                self._waiting_for = ""
                return result
        raise Cancelled

    def _work(self) -> None:
        try:
            self._download()
            self.problem = None
        except self._expected as error:
            self.problem = error
        except Cancelled:
            _log.info("%s: no longer needed", self._name)
        finally:
            self.done = True
            self._on_done()
