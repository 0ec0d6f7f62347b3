"""The one place that tries again: jittered exponential pauses, a deadline for each operation, a budget for all of them.

Layer: adapters. The library's own retries are switched off everywhere: they would multiply these, and they know
neither the budget nor the write ids.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from bastion.adapters.gcs.errors import Transient
from bastion.ports import Clock

T = TypeVar("T")

# No line that anyone works over is slower; larger objects get more time by it.
_SLOWEST_BYTES_PER_SECOND = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long, and how often, the store goes on trying.

    Attributes:
        deadline_seconds: For a whole operation, all tries and what is asked after them; objects that are large get
            more, a second for each 256 KiB.
        connect_seconds: For setting up a connection, and for sending a request.
        read_seconds: Between two pieces of an answer.
        first_pause_seconds: The longest pause before the second try; it doubles with each further one.
        longest_pause_seconds: Up to this.
        retries_per_request: Over time, how many retries come on one first try at most: an outage must not multiply
            the load that it may come from.
        spare_retries: How many retries may be made beyond that, at first and after a good while.
    """

    deadline_seconds: float = 60.0
    connect_seconds: float = 10.0
    read_seconds: float = 30.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 16.0
    retries_per_request: float = 0.2
    spare_retries: float = 50.0


class RetryBudget:
    """A token bucket: first tries fill it a little, a retry takes a whole token."""

    def __init__(self, patience: Patience) -> None:
        self._share = patience.retries_per_request
        self._most = patience.spare_retries
        self._tokens = patience.spare_retries
        self._lock = threading.Lock()

    def earn(self) -> None:
        with self._lock:
            self._tokens = min(self._most, self._tokens + self._share)

    def spend(self) -> bool:
        """Takes a token if there is one."""
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """Until when an operation goes on, on the clock's monotonic scale.

    Attributes:
        tries_end: No try begins later; what is left after it is for finding out what came of them.
    """

    clock: Clock
    patience: Patience
    ends: float
    tries_end: float
    sending_seconds: float

    def timeouts(self) -> tuple[float, float]:
        """For one request: seconds to connect and send, seconds between two pieces of the answer."""
        left = max(0.05, self.ends - self.clock.monotonic())
        connect = self.patience.connect_seconds + self.sending_seconds
        return min(left, connect), min(left, self.patience.read_seconds)

    def exceeded(self, received_bytes: int) -> bool:
        """Whether an answer that has come so far takes too long."""
        return self.clock.monotonic() > self.ends + received_bytes / _SLOWEST_BYTES_PER_SECOND


class Retries:
    """Tries an operation until it is answered, for as long as patience and budget last.

    Thread-safe; one for each store.
    """

    def __init__(self, clock: Clock, rng: random.Random, patience: Patience) -> None:
        self._clock = clock
        self._rng = rng
        self._patience = patience
        self._budget = RetryBudget(patience)

    def limit(self, *, sent_bytes: int = 0, asks_after: bool = False, most_seconds: float = float("inf")) -> TimeLimit:
        """The time limit of an operation that begins now.

        Args:
            sent_bytes: What it sends.
            asks_after: Whether it may have to find out what came of it: a sixth of the time is kept for that.
            most_seconds: Of an operation that is not worth more.
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
        """What `attempt` returns.

        Args:
            attempt: One try; raises `Transient` if another one may succeed.
            until: No try begins after this instant of the monotonic clock.

        Raises:
            Transient: as the last try did; its message tells how many there were.
        """
        self._budget.earn()
        course = _Course(self._clock, self._rng, self._patience, self._budget, until)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            wait=course.wait,
            stop=course.stop,
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
