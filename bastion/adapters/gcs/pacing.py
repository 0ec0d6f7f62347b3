"""Writes of one object, kept apart: Cloud Storage takes about one a second to the same name and refuses more with 429.

Layer: adapters. Writers of several processes are not known to each other; the service's 429 spaces those.
"""

from __future__ import annotations

import threading

from bastion.ports import Clock

_SWEEP_FROM = 1024


class WritePacer:
    """Gives each write of a key its instant, `interval_seconds` after the one before.

    Invariant: nothing is remembered of a key longer than until its next write may begin, but for what awaits the next
    sweep: at most as many keys as were written in one interval, or `_SWEEP_FROM`, twice over.
    """

    def __init__(self, clock: Clock, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        # When the next write of a key may begin, on the monotonic clock.
        self._free_at: dict[str, float] = {}
        self._sweep_at = _SWEEP_FROM

    def wait(self, key: str, *, until: float) -> bool:
        """Sleeps until the caller may write the key.

        Args:
            until: The latest instant, on the monotonic clock, that is any use to the caller.

        Returns:
            Whether it may; if not, it has not waited and takes no turn.
        """
        if self._interval_seconds <= 0:
            return True
        with self._lock:
            now = self._clock.monotonic()
            start = max(now, self._free_at.get(key, now))
            if start > until:
                return False
            self._free_at[key] = start + self._interval_seconds
            if len(self._free_at) >= self._sweep_at:
                self._free_at = {key: free_at for key, free_at in self._free_at.items() if free_at > now}
                self._sweep_at = max(_SWEEP_FROM, 2 * len(self._free_at))
        if start > now:
            self._clock.sleep(start - now)
        return True

    def __len__(self) -> int:
        """Keys that are remembered."""
        return len(self._free_at)
