"""One writer at a time per key, among threads and processes, and the mark above which its next generation must lie.

Layer: directory.

Keys share 64 lock files by hash. A lock file is opened anew each time, because `flock` belongs to the open file: so
threads exclude each other too, and the kernel frees the lock of a process that dies. The file's content is the highest
stamp ever given to one of its keys; it outlives the keys, so that a key deleted and created again goes on upwards even
if the clock was set back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from bastion.core.errors import StoreUnavailable
from bastion.folder_format import files

LOCK_FOLDER = "locks"
_POLL_SECONDS = 0.0005
_POLL_MAX_SECONDS = 0.02


class HighWaterMark:
    """The content of a lock file that we hold."""

    def __init__(self, file: int) -> None:
        self._file = file
        text = os.pread(file, 32, 0).strip()
        # An empty file is new; anything but digits is a stranger's work and means no more than "nothing known".
        self.stamp = int(text) if text.isdigit() and len(text) <= 20 else 0

    def raise_to(self, stamp: int) -> None:
        """Remembers that this stamp is used up."""
        if stamp > self.stamp:
            os.pwrite(self._file, b"%020d\n" % stamp, 0)
            self.stamp = stamp


@contextlib.contextmanager
def locked(objects: int, name: str, *, path: str, timeout_seconds: float) -> Iterator[HighWaterMark]:
    """Holds the lock file `name`.

    Args:
        objects: The hidden folder, open.
        name: Of the lock file.
        path: Of the hidden folder, for messages.
        timeout_seconds: A holder needs milliseconds; one that was stopped may hold it forever.

    Raises:
        StoreUnavailable: somebody else held it all the time.
    """
    folder = files.open_folder(objects, [LOCK_FOLDER], create=True)
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT | files.FILE, files.FILE_MODE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not _acquired(file, timeout_seconds):
            raise StoreUnavailable(
                f"another process has held {path}/{LOCK_FOLDER}/{name} for {timeout_seconds:g} s; "
                "find it with `fuser` on that file and end it if it hangs, then try again"
            )
        yield HighWaterMark(file)
    finally:
        # Closing the only descriptor of this open file gives the lock back.
        os.close(file)


def _acquired(file: int, timeout_seconds: float) -> bool:
    """Polls, because a blocking `flock` cannot be given a deadline."""
    deadline = time.monotonic() + timeout_seconds
    pause = _POLL_SECONDS
    while not _try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MAX_SECONDS)
    return True


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
