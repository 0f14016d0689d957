"""The C library's allocator in a server: it keeps freed memory, shared between its threads."""

import os

from wings_core import allocator


def keep_freed_memory() -> bool:
    """Set glibc's bounds for this process, before it starts threads; return whether they were set.

    They are not with another C library, or where the environment has a `MALLOC_…` variable.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    # With an arena for each of many threads, each would keep memory of its own.
    return allocator.keep_freed_memory(arenas_max=max(2, os.cpu_count() or 2))
