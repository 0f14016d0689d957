"""The C library's allocator in a server: it keeps freed memory, shared between its threads."""

import os

from wings_core import allocator


def keep_freed_memory() -> bool:
    """Set the bounds for this process, before it starts threads; return whether that was possible.

    What the environment sets (`MALLOC_ARENA_MAX` and others) is left as it is. Another C library
    than glibc is left alone.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    # With an arena for each of many threads, each would keep memory of its own.
    return allocator.keep_freed_memory(arenas_max=max(2, os.cpu_count() or 2))
