"""A clock that moves only when told: tests of waiting never wait."""

from __future__ import annotations


class ManualClock:
    """Behind the `Clock` port; `sleep` moves it, so a loop under test runs through at once."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._now = now
        self._stepped = 0.0
        self._monotonic = 1_000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._monotonic += seconds

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._now += seconds
        self._stepped += seconds

    def unset(self) -> float:
        """Seconds since the epoch by a clock that nobody sets: that of a bucket in the cloud."""
        return self._now - self._stepped
