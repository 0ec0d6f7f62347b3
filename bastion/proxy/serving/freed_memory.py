"""Keep freed memory in the process.

The proxy allocates buffers of a few hundred KiB thousands of times a second. By default glibc returns each to the
kernel, which clears its pages for the next one: that took a third of the sealing time. Keeping them costs a few MiB.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_KEPT_BYTES = 4 * 1024 * 1024
_LARGE_BYTES = 1024 * 1024
# Each arena keeps its own memory. Threads allocate under Python's lock, so more arenas would not help.
_ARENAS = 4


def keep_freed_memory() -> None:
    """Keep up to 4 MiB of freed memory in each of 4 arenas. Call it before starting threads. Does nothing without
    glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)
