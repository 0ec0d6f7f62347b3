"""`--grep=REGEX`: match lines within a bounded time.

A pattern like `(a+)+$` may take exponential time. A CPU timer (`SIGPROF`) limits the time for each line, since Python's
engine checks for signals while it searches. Between two checks the engine may need time quadratic in the line's length,
so only the beginning of a line is searched.
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
    """The time for one line is used up."""


class LinePattern:
    """A regular expression in Python's syntax, searched in lines.

    Installs a handler for `SIGPROF`, so use it in the main thread only.

    Args:
        cpu_seconds: Limit for one line.

    Raises:
        Refused: the text is not a valid regular expression.
    """

    def __init__(self, text: str, *, cpu_seconds: float = CPU_SECONDS_PER_LINE) -> None:
        self._text = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
        self._cpu_seconds = cpu_seconds
        if len(text) > PATTERN_MAX_CHARACTERS:
            raise Refused(f"--grep is {len(text)} characters long; the maximum is {PATTERN_MAX_CHARACTERS}")
        try:
            self._search = re.compile(text).search
        except (re.error, RecursionError, OverflowError) as error:
            raise Refused(
                f"--grep={plain(self._text)} is not a valid regular expression: {error}; use \\ before literal text"
            ) from error
        self._searching = False
        signal.signal(signal.SIGPROF, self._stop)

    def __call__(self, line: bytes) -> bool:
        """Whether the first 16 KiB of the line contain a match. Raises `Refused` if the search takes too long."""
        searched = line[:SEARCHED_BYTES].decode("utf-8", "replace")
        try:
            self._searching = True
            signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds)
            try:
                return self._search(searched) is not None
            finally:
                self._searching = False  # ignore a signal that arrives now
                signal.setitimer(signal.ITIMER_PROF, 0)
        except _TooLong:
            raise Refused(
                f"--grep={plain(self._text)} takes more than {self._cpu_seconds:g} s for one line of "
                f"{len(searched)} characters; avoid nested repetitions like (a+)+"
            ) from None

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        if self._searching:
            raise _TooLong
