"""Budgets of bytes that an event loop, or its threads, hold in memory."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wings_core.errors import ResourceExhausted
from wings_core.memory import MemoryBudget


class Budget:
    """A count of bytes of requests or responses in memory; only for the event loop.

    Args:
        bytes_max: Most bytes; a single one may exceed it.
        memory: Memory budget that they also count against, or None.
    """

    def __init__(self, bytes_max: int, memory: MemoryBudget | None = None) -> None:
        self._bytes_max = bytes_max
        self._memory = memory
        if memory is not None:
            memory.count(lambda: self._held)
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes currently held."""
        return self._held

    def take(self, size: int) -> None:
        """Count bytes as held until `release`.

        Raises:
            ResourceExhausted: The bytes would exceed the budget.
        """
        if self._held and self._held + size > self._bytes_max:
            raise self._exhausted()
        if self._memory is not None and not self._memory.make_room(size):
            raise ResourceExhausted(
                f"{self._memory.held} bytes are being read or waiting to be committed, the limit "
                f"is {self._memory.bytes_max}"
            )
        self._held += size

    def check_room(self) -> None:
        """Check that the budget is not exhausted.

        Raises:
            ResourceExhausted: The budget is exhausted.
        """
        if self._held >= self._bytes_max:
            raise self._exhausted()

    def hold(self, size: int) -> None:
        """Count bytes as held until `release`, even beyond the budget."""
        self._held += size

    def release(self, size: int) -> None:
        """Release held bytes."""
        self._held -= size
        if self._memory is not None:
            self._memory.came_free()

    def _exhausted(self) -> ResourceExhausted:
        return ResourceExhausted(
            f"{self._held} bytes are held already, the limit is {self._bytes_max}"
        )


class WorkRoom:
    """Room in the memory budget that threads take while they work. Thread-safe.

    Args:
        memory: The budget.
    """

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._held = 0
        memory.count(lambda: self._held)

    @contextmanager
    def taking(self) -> Generator[Callable[[int], None]]:
        """Yield a function that takes bytes until the end of the block.

        It raises `ResourceExhausted` if they would exceed the budget.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                if not self._memory.make_room(size):
                    raise ResourceExhausted(f"no room in memory to unfold {size} bytes")
                self._held += size
            taken += size

        try:
            yield take
        finally:
            with self._lock:
                self._held -= taken
            self._memory.came_free()
