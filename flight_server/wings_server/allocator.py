"""Tune the C library's allocator for a server that receives large messages again and again.

By default glibc maps memory for each large message anew and gives it back after: the kernel then
clears every page of it once more, which took a third of the time of a large push (measured). A
server process keeps some freed memory instead, and shares it between its threads.
"""

import ctypes
import os

MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Only allocations above this are mapped one by one; glibc allows no more."""

FREE_BYTES_KEPT_MAX = 64 * 1024 * 1024
"""Freed memory that an arena keeps at its end."""

# Of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Set the bounds for this process, before it starts threads; return whether that was possible.

    What the environment sets (`MALLOC_ARENA_MAX` and others) is left as it is. Another C library
    than glibc is left alone.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # With an arena for each of many threads, each would keep memory of its own.
    arenas = max(2, os.cpu_count() or 2)
    options = (
        (_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
        (_M_TRIM_THRESHOLD, FREE_BYTES_KEPT_MAX),
        (_M_ARENA_MAX, arenas),
    )
    taken = [mallopt(option, value) == 1 for option, value in options]
    return all(taken)
