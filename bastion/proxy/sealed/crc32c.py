"""CRC32C of memory, without holding the interpreter's lock.

google-crc32c holds the lock, which costs other threads more than the checksum. This calls the library's C function
through ctypes, which releases it; a build without C falls back to the library.
"""

from __future__ import annotations

import ctypes
from typing import Any

import google_crc32c

# The standard check value: CRC32C of `123456789`.
_KNOWN = (b"123456789", 0xE3069283)


def _native() -> Any:
    """The C function `uint32_t crc32c_extend(uint32_t, const uint8_t *, size_t)`; None if it does not work."""
    try:
        from google_crc32c import _crc32c

        function = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = ctypes.c_uint32
    data, sum_ = _KNOWN
    return function if function(0, data, len(data)) == sum_ else None


_extend = _native()


class SummedMemory:
    """A buffer to checksum; its size is fixed from now on."""

    __slots__ = ("_address", "_buffer", "_held")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = memoryview(buffer)
        # Pins the memory, because the C function uses its address.
        self._held = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        self._address = ctypes.addressof(self._held)

    def extended(self, crc32c: int, begin: int, end: int) -> int:
        """Extend a running crc32c with the bytes from `begin` to `end`."""
        if not 0 <= begin <= end <= len(self._buffer):
            raise ValueError(f"{begin} to {end} is outside of {len(self._buffer)} bytes")
        extended: int
        if _extend is None:
            extended = google_crc32c.extend(crc32c, bytes(self._buffer[begin:end]))
        else:
            extended = _extend(crc32c, self._address + begin, end - begin)
        return extended
