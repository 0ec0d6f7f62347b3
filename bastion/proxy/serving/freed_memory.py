"""What the C library does with memory that was given back.

Layer: proxy. The proxy makes and drops buffers of a few hundred KiB thousands of times a second. Of that size the GNU C
library returns each to the kernel at once, which clears its pages anew for the next: that took a third of the time of
sealing. Kept for reuse it costs a few MiB.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_KEPT_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 1024 * 1024
# Each keeps its own. Threads allocate under Python's lock, so more of them would help nobody.
_ARENAS = 4


def keep_freed_memory() -> None:
    """Keeps up to 4 MiB that was given back in each of 4 arenas; to be called before there are threads. Does nothing
    with another C library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)
