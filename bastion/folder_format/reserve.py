"""Disk space reserved for small writes that must not fail: states, orders, requests, results.

The reserve is the file `<bucket>/.objects/reserve` with allocated blocks. A writer that finds the disk full truncates
it a little and retries; its owner refills it when there is space. It is in the bucket, so that all writers find it on
the same file system.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER

RESERVE_NAME = "reserve"
# A file of one byte takes a block, its folder perhaps another, and more writes follow.
_PIECE_BYTES = 256 * 1024


def reserve_bytes(disk_bytes: int, *, most: int) -> int:
    """Return the reserve's size for a disk: a fiftieth of it, at most `most`."""
    return min(most, disk_bytes // 50)


class Reserve:
    """The reserve of one folder bucket; process-safe."""

    def __init__(self, bucket: str | os.PathLike[str]) -> None:
        self._path = Path(bucket, HIDDEN_FOLDER, RESERVE_NAME)

    @property
    def held_bytes(self) -> int:
        """Return its current size; 0 if there is none."""
        try:
            return self._path.stat(follow_symlinks=False).st_size
        except OSError:
            return 0

    def fill(self, size: int) -> bool:
        """Make it `size` bytes large; return False if the disk is too full. Raises OSError."""
        self._path.parent.mkdir(mode=files.FOLDER_MODE, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | files.FILE, files.FILE_MODE)
        try:
            held = os.fstat(file).st_size
            if held > size:
                os.ftruncate(file, size)
            elif held < size:
                try:
                    os.posix_fallocate(file, held, size - held)
                except OSError:
                    # Do not keep a partial allocation: it may be the last space there is.
                    os.ftruncate(file, held)
                    return False
        finally:
            os.close(file)
        return True

    def release(self, needed: int) -> bool:
        """Free space for a write of that many bytes; return False if nothing is left."""
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_RDWR | files.FILE)
            try:
                held = os.fstat(file).st_size
                if held:
                    os.ftruncate(file, max(0, held - 2 * needed - _PIECE_BYTES))
                    return True
            finally:
                os.close(file)
        return False
