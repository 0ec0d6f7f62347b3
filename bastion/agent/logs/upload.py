"""Move a host's log from the spool to the bucket, a chunk per slot, until the spool is closed and empty.

Invariants:
* Chunks are stored in order, and retried forever with the same bytes.
* Uploads, failed ones too, happen at the host's slots only, except during shutdown.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from bastion.agent.backoff import Backoff
from bastion.agent.logs.lines import LogRecord
from bastion.agent.logs.pace import Pace
from bastion.agent.logs.spool import LogSpool
from bastion.core.errors import StoreError

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 3600.0
# A signal handler learns of a shutdown, and must not wake this thread.
_LOOK_SECONDS = 0.2


class Uploader:
    def __init__(
        self,
        spool: LogSpool,
        *,
        text_of: Callable[[LogRecord], bytes],
        write: Callable[[bytes], None],
        pace: Pace,
        backoff: Backoff,
        monotonic: Callable[[], float],
        is_urgent: Callable[[], bool],
        on_done: Callable[[], None],
    ) -> None:
        """Make the uploader; `start` starts its thread.

        Args:
            text_of: The bytes to store for a record.
            write: Appends bytes. After a `StoreError` it is called again with the same bytes.
            is_urgent: Whether the host is shutting down, so that the end of the log waits for no slot.
            on_done: Called in the uploader's thread once `done` is true.
        """
        self._spool = spool
        self._text_of = text_of
        self._write = write
        self._pace = pace
        self._ended_pace = pace.ended()
        self._backoff = backoff
        self._monotonic = monotonic
        self._is_urgent = is_urgent
        self._on_done = on_done
        self._text: bytes | None = None  # of the chunk being uploaded
        self._last_at = -math.inf
        self._retry_at = -math.inf
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="log-uploader", daemon=True)
        self.done = False

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """End the thread after the current operation; the rest stays in the spool."""
        self._abandoned = True
        self._spool.changed.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        self._thread.join(timeout_seconds)

    def step(self) -> float | None:
        """Do what is due, without waiting; return the seconds until the next step. None: all is stored."""
        now = self._monotonic()
        closed = self._spool.closed  # before looking at the spool: nothing comes after it
        pace = self._ended_pace if closed else self._pace
        if self._text is None:
            waiting = self._spool.waiting()
            if waiting is None:
                return None if closed else _IDLE_SECONDS
            due = pace.next_slot(ready_at=waiting.ready_at, last_at=self._last_at, behind=waiting.full or closed)
            # Until the command has ended, its output waits for a slot even during a shutdown: all hosts of the job may
            # shut down at once.
            if due > now and not (closed and self._is_urgent()):
                return due - now
            self._text = b"".join(map(self._text_of, self._spool.take()))
        elif self._retry_at > now:
            return self._retry_at - now
        self._last_at = now
        try:
            # The chunk held only noise.
            if self._text:
                self._write(self._text)
        except StoreError as error:
            delay = self._backoff.next()
            self._retry_at = now + delay
            if not self._is_urgent():
                self._retry_at = pace.next_slot(ready_at=self._retry_at, last_at=now, behind=True)
            _log.warning("log upload failed; retrying in %.1f s: %s", self._retry_at - now, error)
            return self._retry_at - now
        self._text = None
        self._spool.confirm()
        self._backoff.reset()
        return 0.0

    def _work(self) -> None:
        while not self._abandoned:
            delay = self.step()
            if delay is None:
                self.done = True
                break
            if self._spool.changed.wait(min(delay, _LOOK_SECONDS) if self._spool.closed else delay):
                self._spool.changed.clear()
        self._on_done()
