"""The thread that reads the command's stdout and stderr and cuts them into records.

Invariants:
* Nothing is formatted here: the command never waits for more than a copy.
* Everything in the pipes when `finish` is called is read, or a gap line says that output is missing.
* A process that outlives the command cannot block the host by keeping a pipe open: after `finish`, an empty pipe is
  read for at most `LINGER_SECONDS`, and at most `DRAIN_MAX_BYTES` are read.
* While it reads, no other thread cuts lines: the agent's own notes go through it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import selectors
import threading
from collections.abc import Callable, Iterable, Mapping

from bastion.agent.logs.lines import LineCutter, LogRecord
from bastion.agent.wakeup import Wakeup
from bastion.ports import Clock

READ_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
LINGER_SECONDS = 1.0
# The largest pipe that Linux gives an unprivileged process, for each of two streams.
DRAIN_MAX_BYTES = 2 * 1024 * 1024
_IDLE_SECONDS = 60.0


_GLOO_PIECES = (
    rb"\[Gloo\] Rank ",
    rb" is connected to ",
    rb" peer ranks\. ",
    rb"Expected number of connected peer ranks is : ",
)
_GLOO_TEXT = rb"(?:" + rb"|".join(_GLOO_PIECES) + rb")"
_GLOO_LINE = re.compile(rb"[0-9]*" + _GLOO_TEXT + rb"(?:" + _GLOO_TEXT + rb"|[0-9])*")


def is_gloo_noise(line: bytes) -> bool:
    """Whether a line is gloo's chatter on CPU: "[Gloo] Rank 2 is connected to 15 peer ranks. ...".

    Several threads print at once, so a line may hold pieces of several messages in any order.
    """
    return _GLOO_LINE.fullmatch(line) is not None


class LogPump:
    """Reads two pipes until both end, or until `finish`; then closes them."""

    def __init__(
        self,
        pipes: Mapping[str, int],
        *,
        cutter: LineCutter,
        put: Callable[[Iterable[LogRecord]], None],
        clock: Clock,
        on_done: Callable[[], None],
    ) -> None:
        self._pipes = dict(pipes)
        self._cutter = cutter
        self._put = put
        self._clock = clock
        self._on_done = on_done
        self._finishing = threading.Event()
        self._lock = threading.Lock()
        self._notes: list[str] = []
        self._takes_notes = True
        self.read_bytes = 0
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._work, name="log-pump", daemon=True)
        self.done = False

    def start(self) -> None:
        self._thread.start()

    def note(self, text: str) -> bool:
        """Add a line by the agent; False if the pump has ended, and the caller may cut lines itself."""
        with self._lock:
            if not self._takes_notes:
                return False
            self._notes.append(text)
        self._wakeup.set()
        return True

    def finish(self) -> None:
        """Read what is left and end: all processes of the command have ended."""
        self._finishing.set()
        self._wakeup.set()

    def _work(self) -> None:
        selector = selectors.DefaultSelector()
        try:
            for stream, descriptor in self._pipes.items():
                os.set_blocking(descriptor, False)
                # A pipe buffers output while this thread is not scheduled. A user's total pipe size is limited.
                with contextlib.suppress(OSError):
                    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                selector.register(descriptor, selectors.EVENT_READ, stream)
            selector.register(self._wakeup.fileno(), selectors.EVENT_READ, None)
            self._pump(selector)
        finally:
            with self._lock:
                self._takes_notes = False
                self._put_notes()
            selector.close()
            for descriptor in self._pipes.values():
                os.close(descriptor)
            self._wakeup.close()
            self.done = True
            self._on_done()

    def _pump(self, selector: selectors.BaseSelector) -> None:
        streams = set(self._pipes)
        linger_until: float | None = None
        drained = 0
        while streams:
            now = self._clock.monotonic()
            if linger_until is None and self._finishing.is_set():
                linger_until = now + LINGER_SECONDS
            timeout = self._cutter.idle_in(now)
            timeout = _IDLE_SECONDS if timeout is None else timeout
            if linger_until is not None:
                timeout = min(timeout, max(0.0, linger_until - now))
            got = 0
            for key, _ in selector.select(timeout):
                if key.data is None:
                    # Level-triggered: it would fire without end. `finish` is remembered.
                    self._wakeup.clear()
                    continue
                data = self._read(key.fd)
                if data is None:
                    continue
                at = self._clock.now()
                if not data:
                    selector.unregister(key.fd)
                    streams.discard(key.data)
                    self._put(self._cutter.close(key.data, at=at))
                    continue
                got += len(data)
                self.read_bytes += len(data)
                self._put(self._cutter.feed(key.data, data, at=at, monotonic=self._clock.monotonic()))
            self._put(self._cutter.flush_idle(at=self._clock.now(), monotonic=self._clock.monotonic()))
            with self._lock:
                self._put_notes()
            if linger_until is None:
                continue
            drained += got
            if drained > DRAIN_MAX_BYTES or (not got and self._clock.monotonic() >= linger_until):
                self._give_up(streams, left=got > 0)
                return

    def _put_notes(self) -> None:
        notes, self._notes = self._notes, []
        self._put([self._cutter.note(text, at=self._clock.now()) for text in notes])

    def _give_up(self, streams: set[str], *, left: bool) -> None:
        at = self._clock.now()
        for stream in sorted(streams):
            self._put(self._cutter.close(stream, at=at))
        if left:
            reason = "a process that could not be stopped is still writing"
            self._put([self._cutter.gap(None, reason, at=at)])

    @staticmethod
    def _read(descriptor: int) -> bytes | None:
        """Bytes, b"" at the end, None if there is nothing now."""
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return None
