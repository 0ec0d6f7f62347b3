"""What the supervisors of emulated hosts and pods share: they wait for signals, and end without an emulator."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType


class Wakeups:
    """Lets signals wake a waiting thread at once; `ending` after SIGTERM or SIGINT. For the main thread."""

    def __init__(self) -> None:
        self.ending = False
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.signal(signal.SIGINT, self._on_end)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)

    def wait(self, seconds: float) -> None:
        """Return after a signal, or after this time."""
        select.select([self._wakeup], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self.ending = True


class Orphanhood:
    """Tells when a supervisor has had no emulator for `seconds`."""

    def __init__(self, has_emulator: Callable[[], bool], seconds: float) -> None:
        self._has_emulator = has_emulator
        self._seconds = seconds
        self._since: float | None = None
        # How often to check, in seconds.
        self.period = min(2.0, seconds / 4)

    def is_over(self) -> bool:
        """Whether it is time to end."""
        if self._has_emulator():
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since > self._seconds


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap all ended children; process id and exit code (negative: the signal) of each."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)
