"""Waking a waiting loop from another thread or from a signal handler.

Layer: worker. `threading.Event` must not be set in a signal handler (its lock may be held by the very frame that was
interrupted); a byte in a pipe may.
"""

from __future__ import annotations

import contextlib
import os
import select


class Wakeup:
    """A condition that stays set until it is cleared."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Readable while set, for selectors."""
        return self._read

    def set(self) -> None:
        """Safe in signal handlers and from any thread, also after `close`."""
        # A full pipe is set already; a closed one has nobody waiting.
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until set or the time is over, and clears it; returns whether it was set."""
        ready, _, _ = select.select([self._read], [], [], max(0.0, timeout_seconds))
        if ready:
            self.clear()
        return bool(ready)

    def close(self) -> None:
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._read = self._write = -1
