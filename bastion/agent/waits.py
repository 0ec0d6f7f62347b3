"""How a host waits: for what its threads do, and for a bucket that does not answer. A shutdown cuts both short."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import TypeVar

from bastion.agent.backoff import Backoff
from bastion.agent.stop_reasons import StopReasons
from bastion.agent.wakeup import Wakeup
from bastion.core.errors import StoreError
from bastion.ports import Clock

_log = logging.getLogger(__name__)

# A wakeup comes earlier.
FOREVER = 3600.0

T = TypeVar("T")


class Waits:
    """The waits of one host's main loop."""

    def __init__(self, reasons: StopReasons, wakeup: Wakeup, *, clock: Clock, rng: Random) -> None:
        self._reasons = reasons
        self._wakeup = wakeup
        self._clock = clock
        self._rng = rng

    def until(
        self,
        condition: Callable[[], bool],
        *,
        at_most_seconds: float | None = None,
        at_most_seconds_if_shut_down: float = 0.0,
    ) -> bool:
        """Wait until the condition is true or time is up; return the condition."""
        deadline = None if at_most_seconds is None else self._clock.monotonic() + at_most_seconds
        shut_down = False
        while not condition():
            now = self._clock.monotonic()
            if self._reasons.shut_down and not shut_down:
                shut_down = True
                until = now + at_most_seconds_if_shut_down + self._reasons.spare_seconds
                deadline = until if deadline is None else min(deadline, until)
            if deadline is not None and now >= deadline:
                return False
            self._wakeup.wait(FOREVER if deadline is None else deadline - now)
        return True

    def until_answered(self, operation: Callable[[], T]) -> T | None:
        """Retry a store operation until the bucket answers; return None only at shutdown."""
        backoff = Backoff(self._rng)
        while not self._reasons.shut_down:
            try:
                return operation()
            except StoreError as error:  # noqa: PERF203 - the loop is a retry
                delay = backoff.next()
                _log.warning("the bucket did not answer; retrying in %.1f s: %s", delay, error)
                self._wakeup.wait(delay)
        return None
