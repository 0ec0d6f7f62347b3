"""Bytes on their way to becoming an object (skeleton).

Layer: emulator.
"""

from __future__ import annotations


class Staging:
    """A file that grows until it is committed or discarded."""

    @property
    def size(self) -> int:
        raise NotImplementedError

    @property
    def crc32c(self) -> int:
        raise NotImplementedError

    @property
    def md5(self) -> bytes | None:
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def discard(self) -> None: ...

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()
