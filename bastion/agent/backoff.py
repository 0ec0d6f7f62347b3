"""Backoff delays with jitter, so that thousands of hosts that lose one bucket do not retry in step. Pure."""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays of one retried operation: they double from `first_seconds` to `last_seconds`. `reset` after a success."""

    def __init__(self, rng: Random, *, first_seconds: float = 0.25, last_seconds: float = 30.0) -> None:
        self._rng = rng
        self._first = first_seconds
        self._last = last_seconds
        self._delay = first_seconds

    def reset(self) -> None:
        self._delay = self._first

    def next(self) -> float:
        """The seconds to wait now: between half and all of the current delay."""
        delay = self._delay
        self._delay = min(self._delay * 2, self._last)
        return delay * self._rng.uniform(0.5, 1.0)


def jittered(seconds: float, rng: Random, *, share: float = 0.2) -> float:
    """`seconds`, changed at random by up to `share` of it."""
    return seconds * rng.uniform(1.0 - share, 1.0 + share)
