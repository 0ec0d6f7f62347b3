"""The signals of somebody at a terminal, while a command runs in the foreground."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator

# A terminal sends them to all of its processes, the command too.
_OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class Foreground:
    """Sends signals to the command in the foreground; those that come before it is known wait for it."""

    def __init__(self, *, other_session: bool) -> None:
        self._kill = os.killpg if other_session else os.kill
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def follow(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for a command; return its exit code, or 128 + the number of the signal that ended it."""
        self._process = process
        for number in self._early:
            self.send(number, None)
        code = process.wait()
        return code if code >= 0 else 128 - code

    def send(self, number: int, _frame: object) -> None:
        if self._process is None:
            self._early.append(number)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._kill(self._process.pid, number)


@contextlib.contextmanager
def terminal_signals(*, other_session: bool) -> Iterator[Foreground]:
    """Leave the terminal's signals to the command, and forward the others.

    `other_session`: the command is not of this terminal, so it gets all of them from here.
    """
    foreground = Foreground(other_session=other_session)

    def leave(_number: int, _frame: object) -> None:
        """Do nothing, as a handler: the command would inherit SIG_IGN."""

    if threading.current_thread() is not threading.main_thread():
        yield foreground
        return
    handlers = dict.fromkeys(_OF_TERMINALS, foreground.send if other_session else leave)
    handlers |= dict.fromkeys(_FORWARDED, foreground.send)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield foreground
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
