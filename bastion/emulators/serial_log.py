"""A bounded log file of an emulated host or container."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import BinaryIO

_MAX_BYTES = 1024 * 1024


class SerialLog:
    """Output of a host's script or a container: at most two files of `max_bytes`, the older one ending in `.1`.

    A full disk loses output. Never raises or stops reading: a full pipe would stop the whole host.
    """

    def __init__(self, path: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._stream: BinaryIO = path.open("ab", buffering=0)
        self._size = path.stat().st_size
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._size and self._size + len(data) > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                following = self._path.open("ab", buffering=0)
                self._stream.close()
                self._stream = following
                self._size = 0
            self._size += self._stream.write(data) or 0
