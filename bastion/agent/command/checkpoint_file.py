"""The file that a command touches after each save: the time of the last save.

Invariants:
* Whatever the command does with the file, a look finds a checkpoint or none.
* A checkpoint's time is between the command's start and the look that found it, on the monotonic clock plus the start.
* A checkpoint that was found stays found when the file vanishes or changes its type.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bastion.ports import Clock


class CheckpointFile:
    """The checkpoint file of one command, created at its start, `began_at` (seconds since the epoch)."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.began_at = clock.now()
        self._began = clock.monotonic()
        self._touched_ns: int | None = None
        self._saved_at: float | None = None

    def latest(self) -> float | None:
        """Look at the file; return the time of the last checkpoint in seconds since the epoch, or None."""
        try:
            # lstat: a link could lead to a file system that hangs. A named pipe is never opened.
            found = os.lstat(self._path)
        except OSError:
            return self._saved_at
        if stat.S_ISREG(found.st_mode) and found.st_mtime_ns != self._touched_ns:
            self._touched_ns = found.st_mtime_ns
            elapsed = self._clock.monotonic() - self._began
            # Both by the wall clock of this moment, so earlier clock jumps do not matter.
            age = max(0.0, self._clock.now() - found.st_mtime)
            self._saved_at = self.began_at + max(0.0, elapsed - age)
        return self._saved_at
