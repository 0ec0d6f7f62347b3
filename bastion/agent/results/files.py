"""Read what a command left in its results file. The command may put anything at that path.

Invariants: nothing but a plain file is opened, a bounded part of it is read, and everything that is dropped is said.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bastion.core import limits
from bastion.core.plurals import count

# Of a line that is too long.
_SHOWN_BYTES = 200


@dataclass(slots=True)
class Lines:
    """Lines of one host, and what is left of the space for them.

    Attributes:
        kept: As text; what is not UTF-8 became U+FFFD.
        problems: What was dropped and why, for people.
        truncated: Whether there was more than what is kept.
    """

    kept: list[str] = field(default_factory=list)
    truncated: bool = False
    problems: list[str] = field(default_factory=list)
    space: int = limits.RESULTS_MAX_BYTES
    room: int = limits.RESULTS_MAX_LINES

    def rest(self) -> Lines:
        """Room for more lines, in the space that these leave."""
        return Lines(space=self.space, room=self.room)

    def take(self, line: str) -> bool:
        """Keep a line if there is space for it."""
        size = len(json.dumps(line, ensure_ascii=False).encode()) + 1
        if not self.room or size > self.space:
            return False
        self.kept.append(line)
        self.space -= size
        self.room -= 1
        return True


def read(path: Path, name: str, lines: Lines) -> Lines:
    """Add the lines of a file, if there is one; empty lines too, so that their numbers are right.

    Args:
        name: What messages call the file.
    """
    try:
        kind = _kind(path)
        if kind:
            lines.problems.append(f"{name} is {kind}, not a plain file; nothing in it was read")
            return lines
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):  # it may have become something else since
                _read(file, name, lines)
    except FileNotFoundError:
        pass
    except OSError as error:
        lines.problems.append(f"{name} could not be read: {error.strerror or error}")
    return lines


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return ""
    names = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"))
    return next((name for matches, name in names if matches(mode)), "a socket or a device")


def _read(file: IO[bytes], name: str, lines: Lines) -> None:
    cut = 0
    for number, (line, too_long) in enumerate(_lines_of(file), start=1):
        cut += too_long
        # What is cut must not look like a valid line.
        text = line[:_SHOWN_BYTES] + b"..." if too_long else line
        if not lines.take(text.decode("utf-8", "replace")):
            lines.truncated = True
            lines.problems.append(
                f"{name}: line {number} and all after it are dropped (the file has {_size(file)} bytes); a host stores "
                f"at most {count(limits.RESULTS_MAX_LINES, 'line')} and {limits.RESULTS_MAX_BYTES} bytes"
            )
            break
    else:
        if file.read(1):
            lines.truncated = True
            lines.problems.append(f"{name}: nothing after {limits.RESULTS_FILE_READ_MAX_BYTES} bytes was read")
    if cut:
        lines.truncated = True
        lines.problems.append(
            f"{name}: {count(cut, 'line')} cut, because they are longer than {limits.RESULTS_LINE_MAX_BYTES} bytes"
        )


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


def _lines_of(file: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each line's beginning, and whether it is too long; end after the bytes that a host reads."""
    most = limits.RESULTS_LINE_MAX_BYTES + 1
    left = limits.RESULTS_FILE_READ_MAX_BYTES
    while left > 0 and (line := file.readline(most)):
        left -= len(line)
        rest = line
        while left > 0 and len(rest) == most and not rest.endswith(b"\n"):
            rest = file.readline(most)
            left -= len(rest)
        text = line.rstrip(b"\r\n")
        yield text, len(text) >= most
