"""A growing file in the bucket's hidden folder that will become an object, with checksums. Uses constant memory."""

from __future__ import annotations

import errno
import os

from bastion.core.errors import StoreUnavailable
from bastion.emulators.gcs.checksums import Sums, crc32c_combined
from bastion.emulators.gcs.opened_bucket import OpenedBucket
from bastion.emulators.gcs.resources import ChecksumMismatch
from bastion.folder_format import files
from bastion.folder_format.places import Temporary
from bastion.storage_wire.declared_sums import Declared

_PIECE_BYTES = 1024 * 1024
_RANGE_BYTES = 1 << 30
# Errors if the kernel cannot copy between these two files.
_NO_COPYING = frozenset({errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY})


class Staging:
    """A file that becomes an object or is discarded, at the latest by its context manager.

    It owns `opened` (the bucket) and `content` (the file, with `sums` of the bytes that it holds).
    """

    def __init__(self, opened: OpenedBucket, content: Temporary, sums: Sums | None = None) -> None:
        self.opened = opened
        self.content = content
        self._sums = Sums() if sums is None else sums
        self._size = self._sums.size
        # Of the bytes that were concatenated from files; the running sums end there.
        self._crc32c: int | None = None
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def crc32c(self) -> int:
        return self._sums.crc32c if self._crc32c is None else self._crc32c

    @property
    def md5(self) -> bytes | None:
        """Of the bytes so far; None after concatenation from files."""
        return self._sums.md5 if self._crc32c is None else None

    def write(self, data: bytes) -> None:
        """Append bytes. Raises StoreError if the disk is full."""
        try:
            files.write_all(self.content.file, data)
        except OSError as error:
            raise files.explain(
                error, doing="writing", path="an upload", needs="write permission on the bucket's .objects"
            ) from error
        self._size += len(data)
        if self._crc32c is None:
            self._sums.add(data)
        else:
            following = Sums()
            following.add(data)
            self._crc32c = crc32c_combined(self._crc32c, following.crc32c, following.size)

    def add_file(self, file: int, size: int, crc32c: int) -> None:
        """Append the first `size` bytes of an open file with known CRC32C. Raises StoreUnavailable if it has fewer."""
        _copy_bytes(file, self.content.file, size)
        self._crc32c = crc32c_combined(self.crc32c, crc32c, size)
        self._size += size

    def check(self, declared: Declared) -> None:
        """Raise ChecksumMismatch unless the bytes match the declared checksums."""
        if declared.crc32c is not None and declared.crc32c != self.crc32c:
            raise ChecksumMismatch(
                f"Provided CRC32C {declared.crc32c:08x} doesn't match calculated CRC32C {self.crc32c:08x}."
            )
        md5 = self.md5
        if declared.md5 is not None and md5 is not None and declared.md5 != md5:
            raise ChecksumMismatch(
                f"Provided MD5 hash {declared.md5.hex()} doesn't match calculated MD5 hash {md5.hex()}."
            )

    def discard(self) -> None:
        """Close the file, and remove it unless it became an object; idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self.content.discard()
            finally:
                self.opened.close()

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def _copy_bytes(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of a file, inside the kernel if possible."""
    offset = 0
    by_kernel = hasattr(os, "copy_file_range")
    while offset < size:
        if by_kernel:
            try:
                copied = os.copy_file_range(source, target, min(_RANGE_BYTES, size - offset), offset_src=offset)
            except OSError as error:
                if error.errno not in _NO_COPYING:
                    raise
                by_kernel = False
                continue
        else:
            data = os.pread(source, min(_PIECE_BYTES, size - offset), offset)
            files.write_all(target, data)
            copied = len(data)
        if not copied:
            raise StoreUnavailable(
                f"an object ends after {offset} of its {size} bytes: it was changed by hand; try again"
            )
        offset += copied
