"""The file that a command touches after each save: when it last did, and when its host should tell.

Layer: worker; reads the disk, the clock is injected. Whatever the command does with the file, this only ever finds a
checkpoint or none.

Invariants:

* An instant is never before the command's start and never after the look that found it, on a clock that does not jump:
  the start, plus time by the monotonic clock.
* What was found stays found when the file vanishes or becomes something else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random

from bastion.agent.backoff import jittered
from bastion.core import limits
from bastion.ports import Clock


class CheckpointFile:
    """One command's file; made at the command's start.

    Attributes:
        began_at: The command's start, seconds since the epoch.
    """

    def __init__(self, path: Path, *, clock: Clock, rng: Random) -> None:
        self._path = path
        self._clock = clock
        self._rng = rng
        self.began_at = clock.now()
        self._began = clock.monotonic()
        self._touched_ns: int | None = None
        self._saved_at: float | None = None
        self._told: float | None = None
        self._quiet_until = self._began

    def latest(self) -> float | None:
        """Looks; the instant of the last checkpoint, in seconds since the epoch, or None if there was none."""
        try:
            # Of the name itself: a link could lead to a file system that hangs, and a named pipe is never opened.
            found = os.lstat(self._path)
        except OSError:
            return self._saved_at
        if stat.S_ISREG(found.st_mode) and found.st_mtime_ns != self._touched_ns:
            self._touched_ns = found.st_mtime_ns
            elapsed = self._clock.monotonic() - self._began
            # Both by the wall clock of this very moment, so a clock that jumped earlier does not matter.
            age = max(0.0, self._clock.now() - found.st_mtime)
            self._saved_at = self.began_at + max(0.0, elapsed - age)
        return self._saved_at

    def news(self) -> float | None:
        """Looks; a checkpoint that is to be told now, or None: nothing new, or the last one was told too recently."""
        saved_at, now = self.latest(), self._clock.monotonic()
        if saved_at == self._told or now < self._quiet_until:
            return None
        self._told = saved_at
        self._quiet_until = now + jittered(limits.CHECKPOINT_REPORT_SECONDS, self._rng)
        return saved_at
