"""The C library's allocator in a server: threads share freed memory, kept for a while."""

import os
import threading

from wings_core import runtime
from wings_core.memory import MemoryBudget, own_bytes

LOOK_SECONDS = 2.0
"""Interval of checking the process's memory."""

CHANGE_BYTES_MIN = 64 * 1024 * 1024
"""Change of memory after which unused memory is returned to the system."""

LOOKS = 5
"""Repetitions after a change, once little incoming data is in memory."""


def keep_freed_memory() -> bool:
    """Set glibc's bounds before the process starts threads; returns whether they were set.

    They are not set with another C library, or if the environment has a `MALLOC_…` variable.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    # With an arena per thread, each would keep memory of its own.
    return runtime.keep_freed_memory(arenas_max=max(2, os.cpu_count() or 2))


class FreedMemory:
    """A thread that returns unused memory to the system, until `close`.

    Args:
        budget: The memory budget of incoming data.
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
            # After shrinking, the allocators hold more freed memory.
            if grown > max(CHANGE_BYTES_MIN, 2 * held) or grown < -CHANGE_BYTES_MIN:
                left = LOOKS
            elif left and held < CHANGE_BYTES_MIN:  # Memory in use at that time is free by now.
                left -= 1
            else:
                continue
            runtime.release_unused()
            last = own_bytes()
