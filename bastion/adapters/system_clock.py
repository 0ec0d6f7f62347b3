"""The machine's time behind the `Clock` port."""

from __future__ import annotations

import time


class SystemClock:
    """Uses boot time, not monotonic time: it also counts while the machine sleeps, so a lease expires then too."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
