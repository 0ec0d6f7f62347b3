"""Moving a host's log from the spool to the bucket, a chunk each turn, until the spool is closed and empty.

Layer: worker; a thread of its own. `step` decides and acts once and waits for nothing, so that a test can be the clock.

Invariants:

* Chunks are stored in their order, each as long as it takes, with the same bytes each time.
* Attempts are made at the host's turns only, failed ones too, except when the host is shut down.
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
# A shut-down is told to a signal handler, which must not wake this thread.
_LOOK_SECONDS = 0.2


class Uploader:
    """The thread; `start` begins it."""

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
        """Does nothing yet.

        Args:
            text_of: What is stored for a record.
            write: Stores bytes behind those before. After a `StoreError` it is called with the same bytes again.
            is_urgent: Whether the host goes away, so that the end of the log waits for no turn.
            on_done: Called in this thread once `done` is true.
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
        self._text: bytes | None = None  # of the chunk that was taken
        self._last_at = -math.inf
        self._retry_at = -math.inf
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="log-uploader", daemon=True)
        self.done = False

    def start(self) -> None:
        self._thread.start()

    def abandon(self) -> None:
        """Ends the thread after the operation it is in; what is left stays in the spool."""
        self._abandoned = True
        self._spool.news.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the thread's end."""
        self._thread.join(timeout_seconds)

    def step(self) -> float | None:
        """Does what is due now.

        Returns:
            Seconds until there may be more to do, if the spool has no news before; None when all is stored.
        """
        now = self._monotonic()
        closed = self._spool.closed  # before the look at what waits: nothing comes after it
        pace = self._ended_pace if closed else self._pace
        if self._text is None:
            waiting = self._spool.waiting()
            if waiting is None:
                return None if closed else _IDLE_SECONDS
            due = pace.next_turn(ready_at=waiting.ready_at, last_at=self._last_at, behind=waiting.full or closed)
            # Until the command has ended its output takes turns even then: every host of the job may go away at once.
            if due > now and not (closed and self._is_urgent()):
                return due - now
            self._text = b"".join(map(self._text_of, self._spool.take()))
        elif self._retry_at > now:
            return self._retry_at - now
        self._last_at = now
        try:
            # Nothing is left of a chunk that held nothing but noise.
            if self._text:
                self._write(self._text)
        except StoreError as error:
            delay = self._backoff.next()
            self._retry_at = now + delay
            if not self._is_urgent():
                self._retry_at = pace.next_turn(ready_at=self._retry_at, last_at=now, behind=True)
            _log.warning("log upload failed, again in %.1f s: %s", self._retry_at - now, error)
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
            if self._spool.news.wait(min(delay, _LOOK_SECONDS) if self._spool.closed else delay):
                self._spool.news.clear()
        self._on_done()
