"""The decompressed content of a gzipped file as a response's body."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bastion.storage_wire import transcoding

_STORED_BYTES = 32 * 1024


class Decompressed:
    """The content of a gzipped file in pieces; owns the descriptor. Invalid gzip ends the connection."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return transcoding.decompressed(self._stored())

    def _stored(self) -> Iterator[bytes]:
        offset = 0
        while stored := os.pread(self._descriptor, _STORED_BYTES, offset):
            offset += len(stored)
            yield stored

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


def starts_like_gzip(descriptor: int) -> bool:
    """Whether the file looks like gzip; otherwise its stored bytes are served, whatever its attributes say."""
    return transcoding.starts_like_gzip(os.pread(descriptor, 2, 0))
