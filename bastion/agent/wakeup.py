"""Wake a waiting loop from another thread or a signal handler.

`threading.Event` is unsafe in a signal handler: the interrupted frame may hold its lock. A byte in a pipe is safe.
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
        # A full pipe is already set; a closed one has no waiter.
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._write, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until set or timeout, and clear it; return whether it was set."""
        ready, _, _ = select.select([self._read], [], [], max(0.0, timeout_seconds))
        if ready:
            self.clear()
        return bool(ready)

    def close(self) -> None:
        for descriptor in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._read = self._write = -1
