"""Room on the disk that is kept for small writes which must not fail: states, orders, requests, results.

Layer: directory. The reserve is the file `<bucket>/.objects/reserve`, with blocks allocated and nothing in it. A writer
that finds the disk full cuts off a piece and tries again; whoever keeps the reserve fills it up when there is room. It
lies in the bucket, so that every program that writes there finds it, and is on the same file system.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER

RESERVE_NAME = "reserve"
# A file of one byte takes a block, its folder perhaps another, and the next write comes soon.
_PIECE_BYTES = 256 * 1024


def reserve_bytes(disk_bytes: int, *, most: int) -> int:
    """Return how large the reserve of a disk is: a fiftieth of it, `most` at the most."""
    return min(most, disk_bytes // 50)


class Reserve:
    """The reserve of one folder bucket; any number of processes may use it.

    Args:
        bucket: The bucket's folder.
    """

    def __init__(self, bucket: str | os.PathLike[str]) -> None:
        self._path = Path(bucket, HIDDEN_FOLDER, RESERVE_NAME)

    @property
    def held_bytes(self) -> int:
        """Return how much it has now; 0 if there is none."""
        try:
            return self._path.stat(follow_symlinks=False).st_size
        except OSError:
            return 0

    def fill(self, size: int) -> bool:
        """Make it `size` bytes large; return False if the disk has no room for that.

        Raises:
            OSError: the file cannot be made or written.
        """
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
                    # What a failed allocation got so far must not stay: it may be the last room there is.
                    os.ftruncate(file, held)
                    return False
        finally:
            os.close(file)
        return True

    def release(self, needed: int) -> bool:
        """Give room for a write of so many bytes back to the disk; return False if nothing is left."""
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
