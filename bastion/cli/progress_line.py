"""Progress on stderr: one line that is rewritten on a terminal, one line per change elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the latest progress; call `clear` before printing anything else.

    `interrupt`: called before a line is written, to end another writer's unfinished line.
    """

    def __init__(self, interrupt: Callable[[], None] = lambda: None) -> None:
        self._interrupt = interrupt
        self._live = sys.stderr.isatty()
        self._shown = False
        self._last = ""

    def update(self, text: str, *, again: bool = False) -> None:
        """Show `text` if it is new. `again`: only the elapsed time changed, so show it on a terminal only."""
        if text == self._last or (again and not self._live):
            return
        self._last = text
        self._interrupt()
        if not self._live:
            print(text, file=sys.stderr, flush=True)
            return
        # A wrapped line cannot be rewritten.
        width = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= width else text[: max(0, width - 1)] + "…"
        print(_CLEAR + shown, end="", file=sys.stderr, flush=True)
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
            self._shown = False
