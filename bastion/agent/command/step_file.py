"""The file in which a command keeps the number of its last step.

Invariants:
* Whatever the command does with the file, a look finds a number or none; nothing but a small plain file is read.
* The highest step that was found stays found.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

_STEP = re.compile(rb"\s*([0-9]{1,15})\s*")
_MAX_BYTES = 64


class StepFile:
    """The step file of one try of a command.

    Attributes:
        first: The step that was found first; None: none yet.
        highest: None: none yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.first: int | None = None
        self.highest: int | None = None

    def look(self) -> None:
        try:
            found = os.lstat(self._path)
        except OSError:
            return
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen or not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            return
        try:
            # It may have become something else since.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        try:
            text = os.read(descriptor, _MAX_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        except OSError:
            return
        finally:
            os.close(descriptor)
        self._seen = seen
        number = _STEP.fullmatch(text)
        if number is None:
            return
        step = int(number[1])
        self.first = step if self.first is None else self.first
        self.highest = step if self.highest is None else max(step, self.highest)
