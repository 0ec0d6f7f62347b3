"""`--grep=REGEX`: which lines match, within a bounded time.

Layer: cli. A regular expression like `(a+)+$` takes longer than the age of the universe for some lines of forty
characters. The time for one line is bounded by a timer of the CPU time of this process, that of the system for its
memory included: the timer's signal interrupts the search, since Python's engine looks for signals while it searches,
and the command ends with an error. Only the beginning of a line is searched, because between two such looks the engine
may take time in the square of the line's length.
"""

from __future__ import annotations

import re
import signal
from types import FrameType

from bastion.cli.output import plain
from bastion.core.errors import Refused

PATTERN_MAX_CHARACTERS = 1000
SEARCHED_BYTES = 16 * 1024
CPU_SECONDS_PER_LINE = 1.0
_SHOWN_CHARACTERS = 60


class _TooLong(Exception):
    """The time for one line is over."""


class LinePattern:
    """A regular expression that is searched in lines.

    Only for the main thread, and on systems with `SIGPROF`: it installs that signal's handler.

    Args:
        text: In Python's syntax.
        cpu_seconds: For one line at most.

    Raises:
        Refused: it is none.
    """

    def __init__(self, text: str, *, cpu_seconds: float = CPU_SECONDS_PER_LINE) -> None:
        self._text = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
        self._cpu_seconds = cpu_seconds
        if len(text) > PATTERN_MAX_CHARACTERS:
            raise Refused(f"--grep has {len(text)} characters; {PATTERN_MAX_CHARACTERS} at most")
        try:
            self._search = re.compile(text).search
        except (re.error, RecursionError, OverflowError) as error:
            raise Refused(
                f"--grep={plain(self._text)} is no regular expression: {error}; put \\ before what is meant literally"
            ) from error
        self._searching = False
        signal.signal(signal.SIGPROF, self._stop)

    def __call__(self, line: bytes) -> bool:
        """Whether the line matches somewhere in its first 16 KiB.

        Raises:
            Refused: that takes too long.
        """
        searched = line[:SEARCHED_BYTES].decode("utf-8", "replace")
        try:
            self._searching = True
            signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)
            try:
                return self._search(searched) is not None
            finally:
                self._searching = False  # a signal that comes now is too late to matter
                signal.setitimer(signal.ITIMER_PROF, 0)
        except _TooLong:
            raise Refused(
                f"--grep={plain(self._text)} takes more than {self._cpu_seconds:g} s for one line of "
                f"{len(searched)} characters; write it without a repetition inside a repetition, like (a+)+"
            ) from None

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        if self._searching:
            raise _TooLong
