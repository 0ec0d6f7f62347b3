"""A file that is being fetched: its bytes, and after them a SHA-256 of each range that is there.

    <size bytes><32 bytes for each range; zeros: not fetched yet>

So a file that a dead agent left is continued, and what a cache holds is verified when it is used.

Invariant: the file has an owner's lock (`flock`) while it is written. The kernel frees it when the owner dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

from bastion.core import limits

# Makes a context in which a thread has other rights to files.
Files: TypeAlias = Callable[[], AbstractContextManager[None]]
RANGE_BYTES = limits.INPUT_RANGE_BYTES
_DIGEST_BYTES = 32
# The file system cannot copy inside the kernel between these files.
_NO_KERNEL_COPY = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)


def ranges(size: int) -> int:
    return max(1, -(-size // RANGE_BYTES))


def stored_size(size: int) -> int:
    """The size of the file of an object of `size` bytes."""
    return size + ranges(size) * _DIGEST_BYTES


def range_of(size: int, number: int) -> tuple[int, int]:
    """The offset and length of a range."""
    start = number * RANGE_BYTES
    return start, min(RANGE_BYTES, size - start)


class PartFile:
    """An open file with its owner's lock; `size` is the object's."""

    def __init__(self, descriptor: int, path: Path, size: int) -> None:
        self._descriptor = descriptor
        self.path = path
        self.size = size

    @property
    def is_prepared(self) -> bool:
        return os.fstat(self._descriptor).st_size == stored_size(self.size)

    def prepare(self) -> None:
        """Give the file its whole size, without using disk; what does not have that size is started anew."""
        if not self.is_prepared:
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, stored_size(self.size))

    def missing(self) -> list[int]:
        """The ranges that are not there, or damaged."""
        return [number for number in range(ranges(self.size)) if not self._is_there(number)]

    def _is_there(self, number: int) -> bool:
        digest = self._digest(number)
        if digest == bytes(_DIGEST_BYTES):
            return False
        start, length = range_of(self.size, number)
        return hashlib.sha256(os.pread(self._descriptor, length, start)).digest() == digest

    def _digest(self, number: int) -> bytes:
        return os.pread(self._descriptor, _DIGEST_BYTES, self.size + number * _DIGEST_BYTES)

    def write(self, number: int, data: bytes) -> None:
        """Write a range. Threads may write different ones."""
        _write_at(self._descriptor, data, number * RANGE_BYTES)
        _write_at(self._descriptor, hashlib.sha256(data).digest(), self.size + number * _DIGEST_BYTES)

    def copy(self, target: Path, files: Files = nullcontext) -> bool:
        """Copy the object's bytes into a new file; return False if they are damaged, or a disk cannot read them.

        `files`: gives this thread the rights to open it.
        """
        try:
            with files():
                opened = target.open("w+b")
            with opened as out:
                return all(self._is_copied(out.fileno(), number) for number in range(ranges(self.size)))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False

    def _is_copied(self, out: int, number: int) -> bool:
        start, length = range_of(self.size, number)
        data = self._copied(out, start, length)
        return len(data) == length and hashlib.sha256(data).digest() == self._digest(number)

    def _copied(self, out: int, start: int, length: int) -> bytes:
        """Copy a range, and return it as it is in the copy; a file system that can shares the blocks."""
        if ranges(self.size) > 1:
            try:
                left, at = length, start
                while left and (done := os.copy_file_range(self._descriptor, out, left, at, at)):
                    left, at = left - done, at + done
                if not left:
                    return os.pread(out, length, start)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
        data = os.pread(self._descriptor, length, start)
        _write_at(out, data, start)
        return data

    def strip(self) -> None:
        """Leave the object's bytes only."""
        os.ftruncate(self._descriptor, self.size)

    def move(self, target: Path) -> None:
        self.path.rename(target)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


def _write_at(descriptor: int, data: bytes, start: int) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(descriptor, rest, start)
        rest, start = rest[done:], start + done


@contextlib.contextmanager
def owned(path: Path, size: int, files: Files = nullcontext) -> Iterator[PartFile | None]:
    """Open or create a file as its owner; yield None while someone else is.

    `files`: gives this thread the rights to open it.
    """
    with files():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # The former owner may have moved or removed it.
        with files():
            is_there = _is_at(descriptor, path)
        yield PartFile(descriptor, path, size) if is_there else None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, size: int) -> Iterator[PartFile | None]:
    """Open a complete file for reading; yield None if there is none of that size."""
    try:
        # A pipe without a writer would wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    try:
        whole = os.fstat(descriptor).st_size == stored_size(size)
        yield PartFile(descriptor, path, size) if whole else None
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
