"""CRC32C and MD5 of streamed bytes and of files, and the CRC32C of concatenations."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict

import google_crc32c

from bastion.folder_format import files

# The Castagnoli polynomial, lowest power in the highest bit.
_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_PIECE_BYTES = 1024 * 1024
_KNOWN_MAX = 65_536


class Sums:
    """Running checksums of `size` bytes so far."""

    __slots__ = ("_md5", "crc32c", "size")

    def __init__(self) -> None:
        self.size = 0
        self.crc32c = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        self._md5.update(data)

    def add_file(self, file: int, end: int) -> bool:
        """Add the bytes of an open file from `size` up to the offset `end`; False if it ends before."""
        while self.size < end:
            data = os.pread(file, min(_PIECE_BYTES, end - self.size), self.size)
            if not data:
                return False
            self.add(data)
        return True


def crc32c_of_file(file: int, size: int) -> int | None:
    """CRC32C of the first `size` bytes of an open file; None if it has fewer."""
    crc32c = offset = 0
    while offset < size:
        data = os.pread(file, min(_PIECE_BYTES, size - offset), offset)
        if not data:
            return None
        crc32c = google_crc32c.extend(crc32c, data)
        offset += len(data)
    return crc32c


def crc32c_combined(first: int, second: int, second_size: int) -> int:
    """CRC32C of a concatenation, from the CRC32Cs of both pieces and the size of the second in bytes.

    As polynomials over GF(2), the first remainder is shifted by the second length in bits.
    """
    return _product(_power_of_x(8 * second_size), first) ^ second


def _product(left: int, right: int) -> int:
    """The product of two remainders modulo the polynomial."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product


def _power_of_x(exponent: int) -> int:
    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = _product(square, power)
        square = _product(square, square)
        exponent >>= 1
    return power


class KnownChecksums:
    """A cache of CRC32Cs of files without sidecars, in LRU order, so that large files are read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def get(self, status: os.stat_result) -> int | None:
        key = _identity(status)
        with self._lock:
            crc32c = self._known.get(key)
            if crc32c is not None:
                self._known.move_to_end(key)
        return crc32c

    def of_file(self, file: int, status: os.stat_result) -> int | None:
        """The CRC32C of an open file; None if it changed or was unlinked since its status was read."""
        crc32c = self.get(status)
        known = crc32c is not None
        if not known:
            crc32c = crc32c_of_file(file, status.st_size)
        after = os.fstat(file)
        if crc32c is None or not after.st_nlink or files.generation_of(after) != files.generation_of(status):
            return None
        if not known:
            with self._lock:
                self._known[_identity(status)] = crc32c
                while len(self._known) > _KNOWN_MAX:
                    self._known.popitem(last=False)
        return crc32c


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return (status.st_dev, status.st_ino, files.generation_of(status))
