"""A clock that only tests move."""

from __future__ import annotations


class ManualClock:
    """A `Clock` whose `sleep` moves it, so that loops under test finish at once."""

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
        """Set the wall clock; no time passes."""
        self._now += seconds
        self._stepped += seconds

    def unset(self) -> float:
        """Return seconds since the epoch by a clock that nobody sets, such as a cloud bucket's."""
        return self._now - self._stepped
