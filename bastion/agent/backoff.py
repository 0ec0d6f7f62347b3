"""How long to wait before trying again: doubling from a first delay to a last one, with jitter.

Layer: worker, pure (the random numbers are injected). Thousands of hosts lose the same bucket at the same instant, and
must not come back in step.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays of one retried operation; `reset` after it succeeded."""

    def __init__(self, rng: Random, *, first_seconds: float = 0.25, last_seconds: float = 30.0) -> None:
        self._rng = rng
        self._first = first_seconds
        self._last = last_seconds
        self._delay = first_seconds

    def reset(self) -> None:
        self._delay = self._first

    def next(self) -> float:
        """Seconds to wait now: between half and all of a delay that doubles each time."""
        delay = self._delay
        self._delay = min(self._delay * 2, self._last)
        return delay * self._rng.uniform(0.5, 1.0)


def jittered(seconds: float, rng: Random, *, share: float = 0.2) -> float:
    """`seconds`, more or less by up to that share."""
    return seconds * rng.uniform(1.0 - share, 1.0 + share)
