"""Turns: threads that each make many short system calls make them one after the other.

Layer: emulator. Each such call gives up the interpreter's lock, and of a hundred threads that wait the next one takes
it: a put then costs 120 switches of threads and three times its processor time. A turn is a courtesy, no lock: nothing
is wrong if two threads work at once, so whoever has waited long goes on without one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class OneAtATime:
    """One thread at a time, as far as that does not hold anybody up.

    Args:
        taken: Whether turns are taken at all: where every change waits for the disk, they would add the waits up.
        patience_seconds: How long one is waited for. A hundred turns take a tenth of a second; whoever keeps one longer
            waits for a stranger's lock, or for a disk.
    """

    def __init__(self, *, taken: bool, patience_seconds: float = 1.0) -> None:
        self._taken = taken
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether somebody has a turn just now."""
        return self._lock.locked()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Holds a turn, or goes on without one."""
        held = self._taken and self._lock.acquire(timeout=self._patience_seconds)
        try:
            yield
        finally:
            if held:
                self._lock.release()
