"""Failed ticks: unexpected errors are counted and reported, and the daemon goes on."""

from __future__ import annotations

import traceback

from bastion.core import limits
from bastion.core.instants import to_rfc3339
from bastion.core.plurals import count
from bastion.ports import Clock


class FailedTicks:
    """The failed ticks of one daemon; `count` is since the daemon began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = ""
        self._failed_at = 0.0
        self.count = 0

    def note(self, error: Exception) -> str:
        self.count += 1
        self._failed_at = self._clock.monotonic()
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        what = f"{type(error).__name__}: {error}".removesuffix(": ")[: limits.PROBLEM_MAX_CHARS]
        self._last = f"{to_rfc3339(self._clock.now())}: {what}{place}"
        return self._last

    @property
    def alarm(self) -> str:
        """Return the alarm for an hour after the last failure; otherwise empty."""
        if not self.count or self._clock.monotonic() - self._failed_at >= limits.FAILED_TICK_ALARM_SECONDS:
            return ""
        ticks = count(self.count, "tick")
        return f"{ticks} of this daemon failed, the last at {self._last}; report this with the daemon's log"
