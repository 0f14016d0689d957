"""Waits: how many readers wait for messages, and the bound on them."""

import threading
from typing import Self

from wings_core.errors import ResourceExhausted


class Waits:
    """Counts the readers that wait, whichever way they came in; all methods from any thread.

    Args:
        waiting_max: How many may wait at once; further ones are refused.
    """

    def __init__(self, waiting_max: int) -> None:
        self._lock = threading.Lock()
        self._waiting_max = waiting_max
        self._waiting = 0
        self._begun = 0

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return self._waiting

    @property
    def begun(self) -> int:
        """How many waits have begun so far."""
        return self._begun

    def one(self) -> Self:
        """Count one wait, during a `with` block, which many may be in at a time.

        Raises:
            ResourceExhausted: So many wait already; by the block.
        """
        return self

    def __enter__(self) -> None:
        """Count it."""
        with self._lock:
            if self._waiting >= self._waiting_max:
                raise ResourceExhausted(f"{self._waiting_max} readers wait for messages already")
            self._waiting += 1
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        """Count it no more."""
        with self._lock:
            self._waiting -= 1
