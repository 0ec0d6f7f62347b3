"""CRC32C of memory, while other threads run.

Layer: proxy. google-crc32c computes a checksum with the interpreter's lock held, and takes `bytes` only. While one
thread holds the lock, whichever other comes back from the network goes to sleep, and waking it costs more than the
checksum. So the C function that the library itself calls is called here, through ctypes, which gives the lock up
meanwhile. Where the library has no such function (a build without C), its own way is taken.
"""

from __future__ import annotations

import ctypes
from typing import Any

import google_crc32c

# Of the nine digits, as every description of the checksum has it.
_KNOWN = (b"123456789", 0xE3069283)


def _native() -> Any:
    """The C function `uint32_t crc32c_extend(uint32_t, const uint8_t *, size_t)`; None: there is none that works."""
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
    """A buffer of which checksums are taken; it cannot change its size any more."""

    __slots__ = ("_address", "_buffer", "_held")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = memoryview(buffer)
        # Keeps the memory in its place as long as its address is used.
        self._held = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        self._address = ctypes.addressof(self._held)

    def extended(self, crc32c: int, begin: int, end: int) -> int:
        """A running crc32c with the bytes from `begin` to `end` added."""
        if not 0 <= begin <= end <= len(self._buffer):
            raise ValueError(f"{begin} to {end} lies outside of {len(self._buffer)} bytes")
        extended: int
        if _extend is None:
            extended = google_crc32c.extend(crc32c, bytes(self._buffer[begin:end]))
        else:
            extended = _extend(crc32c, self._address + begin, end - begin)
        return extended
