"""Retries: jittered exponential pauses, a deadline per operation, a budget for all.

The libraries' own retries are off: they would multiply these, and know neither the budget nor the write ids.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from bastion.adapters.bucket_requests.answers import Transient
from bastion.ports import Clock

T = TypeVar("T")

_log = logging.getLogger(__name__)
# After so long without a result it is told what is tried again, once for each operation.
_SILENT_SECONDS = 3.0

# Slowest supported line; larger objects get proportionally more time.
_SLOWEST_BYTES_PER_SECOND = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long and how often the store retries."""

    deadline_seconds: float = 60.0  # for a whole operation with all tries; plus a second for each 256 KiB
    connect_seconds: float = 10.0  # to connect, and to send a request
    read_seconds: float = 30.0  # between two pieces of an answer
    first_pause_seconds: float = 1.0  # maximum pause before the second try; it doubles with each further one
    longest_pause_seconds: float = 16.0  # upper bound of pauses
    retries_per_request: float = 0.2  # long-term retries per first try: an outage must not multiply the load
    spare_retries: float = 50.0  # further retries at the start, and after a quiet time


class RetryBudget:
    """A token bucket: each first try adds a fraction, each retry takes a token."""

    def __init__(self, patience: Patience) -> None:
        self._share = patience.retries_per_request
        self._most = patience.spare_retries
        self._tokens = patience.spare_retries
        self._lock = threading.Lock()

    def earn(self) -> None:
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._share)

    def spend(self) -> bool:
        """Take a token if there is one."""
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """The end of an operation, in monotonic seconds."""

    clock: Clock
    patience: Patience
    ends: float
    tries_end: float  # no try begins later; the rest is for finding out the result
    sending_seconds: float

    def timeouts(self) -> tuple[float, float]:
        """Seconds to connect and send, and between two pieces of the answer."""
        left = max(0.05, self.ends - self.clock.monotonic())
        connect = self.patience.connect_seconds + self.sending_seconds
        return min(left, connect), min(left, self.patience.read_seconds)

    def exceeded(self, received_bytes: int) -> bool:
        """Whether an answer with that many bytes so far is too slow."""
        return self.clock.monotonic() > self.ends + received_bytes / _SLOWEST_BYTES_PER_SECOND


class Retries:
    """Retries an operation within patience and budget. Thread-safe; one per store."""

    def __init__(self, clock: Clock, rng: random.Random, patience: Patience) -> None:
        self._clock = clock
        self._rng = rng
        self._patience = patience
        self._budget = RetryBudget(patience)

    def limit(self, *, sent_bytes: int = 0, asks_after: bool = False, most_seconds: float = float("inf")) -> TimeLimit:
        """Return the time limit of an operation that begins now.

        Args:
            sent_bytes: What it sends.
            asks_after: Reserve a sixth of the time for finding out the result.
            most_seconds: An upper bound.
        """
        sending = sent_bytes / _SLOWEST_BYTES_PER_SECOND
        seconds = min(self._patience.deadline_seconds + sending, most_seconds)
        now = self._clock.monotonic()
        return TimeLimit(
            clock=self._clock,
            patience=self._patience,
            ends=now + seconds,
            tries_end=now + (seconds * 5 / 6 if asks_after else seconds),
            sending_seconds=sending,
        )

    def call(self, attempt: Callable[[], T], *, until: float) -> T:
        """Return what `attempt` returns, retried while it raises `Transient`; no try begins after `until` (monotonic).

        Raises the last try's `Transient`, with the number of tries.
        """
        self._budget.earn()
        course = _Course(self._clock, self._rng, self._patience, self._budget, until)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=course.wait,
            stop=course.stop,
            before_sleep=course.tell,
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except Transient as last:
            if course.tries > 1:
                raise Transient(f"{last} (after {course.tries} tries)", doubtful=last.doubtful) from last
            raise


class _Course:
    """The tries of one operation. tenacity asks for the pause before or after it asks whether to stop."""

    def __init__(self, clock: Clock, rng: random.Random, patience: Patience, budget: RetryBudget, until: float) -> None:
        self._clock = clock
        self._rng = rng
        self._patience = patience
        self._budget = budget
        self._until = until
        self._pause = 0.0
        self._tell_from = clock.monotonic() + _SILENT_SECONDS
        self.tries = 0

    def stop(self, state: tenacity.RetryCallState) -> bool:
        ends = self._clock.monotonic() + self.wait(state)
        return ends >= self._until or not self._budget.spend()

    def wait(self, state: tenacity.RetryCallState) -> float:
        if state.attempt_number > self.tries:
            self.tries = state.attempt_number
            longest = self._patience.first_pause_seconds * 2.0 ** min(self.tries - 1, 30)
            self._pause = self._rng.uniform(0.0, min(longest, self._patience.longest_pause_seconds))
        return self._pause

    def tell(self, state: tenacity.RetryCallState) -> None:
        """Say that it takes long, once."""
        now = self._clock.monotonic()
        if now >= self._tell_from and state.outcome is not None:
            self._tell_from = float("inf")
            left = max(0.0, self._until - now)
            _log.info(
                "the bucket has not answered so far (%s); trying for %.0f s more", state.outcome.exception(), left
            )
