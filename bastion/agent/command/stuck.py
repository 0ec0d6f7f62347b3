"""Whether the command on this host has given no sign of life for too long: no output, checkpoint or step.

Every host says so of itself in its report; the daemon decides when all of them do.

Invariant: only time counts in which this agent looked. A suspended machine, a frozen agent or a jump of the clock adds
no more than `_LOOK_MAX_SECONDS`, and at most half of the limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bastion.ports import Clock

# The longest time between two looks that counts as watched; looks are every few seconds.
_LOOK_MAX_SECONDS = 15.0


class SignWatch:
    """The signs of one try of a command. `look` at them often."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        limit_seconds: float,
        clock: Clock,
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`paths`: of files that the command touches; `files`: gives a thread the rights to look at them."""
        self._paths = paths
        self._files = files
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._look_max_seconds = min(_LOOK_MAX_SECONDS, limit_seconds / 2)
        self._looked_at = clock.monotonic()
        self._signs = self._read(0)
        self._silent_seconds = 0.0

    def look(self, output_bytes: int) -> bool:
        """Return whether there was no sign for the limit. `output_bytes`: what the command has written so far."""
        now = self._clock.monotonic()
        self._silent_seconds += min(max(0.0, now - self._looked_at), self._look_max_seconds)
        self._looked_at = now
        signs = self._read(output_bytes)
        if signs != self._signs:
            self._signs = signs
            self._silent_seconds = 0.0
        return self._silent_seconds >= self._limit_seconds

    def _read(self, output_bytes: int) -> tuple[object, ...]:
        with self._files():
            return (output_bytes, *map(_version, self._paths))


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        # A link could lead to a file system that hangs.
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
