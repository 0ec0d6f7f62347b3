"""One writer at a time per key, across threads and processes, and the lower bound of its next generation.

Keys share 64 lock files by hash. A lock file is opened each time, because `flock` belongs to the open file: threads
exclude each other, and the kernel frees a dead process's lock. Its content is the highest stamp ever given to one of
its keys; it outlives the keys, so that generations increase even after a deletion and a clock change.
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
    """The content of a held lock file."""

    def __init__(self, file: int) -> None:
        self._file = file
        text = os.pread(file, 32, 0).strip()
        # An empty file is new; anything but digits is foreign and counts as unknown.
        self.stamp = int(text) if text.isdigit() and len(text) <= 20 else 0

    def raise_to(self, stamp: int) -> None:
        """Record that this stamp is used."""
        if stamp > self.stamp:
            os.pwrite(self._file, b"%020d\n" % stamp, 0)
            self.stamp = stamp


@contextlib.contextmanager
def locked(objects: int, name: str, *, path: str, timeout_seconds: float) -> Iterator[HighWaterMark]:
    """Hold the lock file `name`; raises StoreUnavailable if someone else holds it for `timeout_seconds`.

    `objects` is the hidden folder, open; `path` is its name for messages. Holders need milliseconds; a stopped one may
    hold it forever.
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
        # Closing its only descriptor releases the lock.
        os.close(file)


def _acquired(file: int, timeout_seconds: float) -> bool:
    """Poll, because a blocking `flock` has no timeout."""
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
