"""The C library's allocator in a server: its threads share freed memory, kept for a while."""

import os
import threading

from wings_core import allocator
from wings_core.memory import MemoryBudget, own_bytes

LOOK_SECONDS = 2.0
"""How often it is looked how much memory the process has."""

CHANGE_BYTES_MIN = 64 * 1024 * 1024
"""The change of memory after which unused memory goes back to the system."""

LOOKS = 5
"""How often that is done again after a change, once little of what came in is in memory."""


def keep_freed_memory() -> bool:
    """Set glibc's bounds for this process, before it starts threads; return whether they were set.

    They are not with another C library, or where the environment has a `MALLOC_…` variable.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    # With an arena for each of many threads, each would keep memory of its own.
    return allocator.keep_freed_memory(arenas_max=max(2, os.cpu_count() or 2))


class FreedMemory:
    """Gives memory back to the system once much of it is not in use, on a thread, until `close`.

    Args:
        budget: Tells how much of what came in is in memory.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-freed-memory", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        last = own_bytes()
        left = 0
        while not self._closing.wait(LOOK_SECONDS):
            held = self._budget.held
            grown = own_bytes() - last
            # Where it shrank, much was freed: there is more that only the allocators hold.
            if grown > max(CHANGE_BYTES_MIN, 2 * held) or grown < -CHANGE_BYTES_MIN:
                left = LOOKS
            elif left and held < CHANGE_BYTES_MIN:  # What was in use then is free by now.
                left -= 1
            else:
                continue
            allocator.release_unused()
            last = own_bytes()
