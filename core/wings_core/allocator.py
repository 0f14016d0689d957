"""Tune the C library's allocator for a process that receives large messages again and again.

By default glibc maps memory for each large message anew and gives it back after: the kernel then
clears every page of it again, which took a third of the time of a large push, and of what it
takes to receive batches (measured). A process may keep some freed memory instead.
"""

import ctypes
from contextlib import suppress

import pyarrow as pa

MAPPED_BYTES_MIN = 32 * 1024 * 1024
"""Only allocations above this are mapped one by one; glibc allows no more."""

FREE_BYTES_KEPT_MAX = 64 * 1024 * 1024
"""Freed memory that an arena keeps at its end."""

PURGED_BYTES = 1024 * 1024
"""Arrow's allocator gives back what other threads freed only when it is next asked for so much."""

# Of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def keep_freed_memory(arenas_max: int | None = None) -> bool:
    """Set the bounds for this process; return whether that was possible.

    Another C library than glibc is left alone.

    Args:
        arenas_max: How many arenas threads share, if this is called before there are more; None:
            as many as glibc will.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = [(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN), (_M_TRIM_THRESHOLD, FREE_BYTES_KEPT_MAX)]
    if arenas_max is not None:
        options.append((_M_ARENA_MAX, arenas_max))
    taken = [mallopt(option, value) == 1 for option, value in options]
    return all(taken)


def release_unused() -> None:
    """Give freed memory back to the system; may take some milliseconds for each gigabyte."""
    pool = pa.default_memory_pool()
    pa.allocate_buffer(PURGED_BYTES)
    pool.release_unused()
    with suppress(AttributeError, OSError, TypeError):  # Another C library than glibc.
        ctypes.CDLL(None).malloc_trim(0)
