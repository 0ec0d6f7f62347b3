"""Limit the writes of one object, like the real service: about one a second, then 429. Off by default."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from bastion.storage_wire.refusals import Refusal

# Number of objects whose last write is remembered.
_REMEMBERED = 10_000


class WriteLimit:
    """Refuses changes of one object beyond `per_second`."""

    def __init__(self, per_second: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1.0 / per_second
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}

    def __call__(self, bucket: str, name: str) -> None:
        """Count a change. Raises Refusal (429) if it is too soon."""
        with self._lock:
            now = self._monotonic()
            last = self._last.get((bucket, name))
            if last is not None and now - last < self._interval:
                message = (
                    f"The object {bucket}/{name} exceeded the rate limit for object mutation operations (create, "
                    "update, and delete). Please reduce your request rate."
                )
                raise Refusal(429, "rateLimitExceeded", message, code="SlowDown")
            if len(self._last) >= _REMEMBERED:
                self._last = {key: when for key, when in self._last.items() if now - when < self._interval}
            self._last[bucket, name] = now
