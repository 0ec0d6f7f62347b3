"""Serialize writer threads, which make many short system calls.

Each call releases the interpreter's lock, and any of a hundred waiting threads takes it: a put then costs three times
its CPU time. Concurrent writers are correct, so a thread that has waited too long proceeds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class OneAtATime:
    """Lets one thread at a time work, if that delays nobody for long.

    Args:
        taken: Whether to serialize; not useful if every change waits for the disk.
        patience_seconds: Maximum wait; a longer hold waits for a lock or a disk.
    """

    def __init__(self, *, taken: bool, patience_seconds: float = 1.0) -> None:
        self._taken = taken
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()

    @property
    def held(self) -> bool:
        return self._lock.locked()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Work alone, or after the maximum wait anyway."""
        held = self._taken and self._lock.acquire(timeout=self._patience_seconds)
        try:
            yield
        finally:
            if held:
                self._lock.release()
