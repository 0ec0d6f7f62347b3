"""Space writes of one object: Cloud Storage takes about one a second per name, and answers 429 to more.

Writers in other processes are unknown here; the 429s space those.
"""

from __future__ import annotations

import threading

from bastion.ports import Clock

_SWEEP_FROM = 1024


class WritePacer:
    """Schedules the writes of each key `interval_seconds` apart.

    Invariant: memory is bounded by twice the keys written in one interval, or `_SWEEP_FROM`.
    """

    def __init__(self, clock: Clock, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        # Earliest time of a key's next write, on the monotonic clock.
        self._free_at: dict[str, float] = {}
        self._sweep_at = _SWEEP_FROM

    def wait(self, key: str, *, until: float) -> bool:
        """Sleep until the caller may write the key; return False at once if that is after `until` (monotonic)."""
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
        return len(self._free_at)
