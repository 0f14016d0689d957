"""The state of a request that all its partitions share: deadline, budget of messages, waits."""

import threading
import time
from typing import Self

from wings_core.errors import ResourceExhausted
from wings_core.metadata.waiting import Wake
from wings_core.times import Deadline


class FetchState:
    """The budget of one request, shared by all its partitions; all methods from any thread.

    "Enough" and "full" are judged by rows delivered. Rows are reserved before they are read, in
    slices, so that no partition starves another, and only rows that metadata says are there; what
    was reserved and not delivered goes back. So the sum over all partitions reaches
    `max_messages` exactly when that many are there, and never exceeds it.

    Args:
        deadline: The end of all waiting, however often the wait wakes.
        min_messages: Enough: once so many are delivered, no stream waits any more.
        max_messages: Full: never more than this.
        partitions: How many partitions share the budget at first; see `recount`.
    """

    def __init__(
        self, deadline: Deadline, min_messages: int, max_messages: int, partitions: int = 1
    ) -> None:
        assert 1 <= min_messages <= max_messages
        assert partitions >= 1
        self.arrived_at = time.monotonic()
        """When the request came: what was committed before is delivered, or waited for no more."""
        self.deadline = deadline
        self.min_messages = min_messages
        self.max_messages = max_messages
        self._lock = threading.Condition()
        self._reserved = 0
        self.delivered = 0
        """Messages delivered so far, over all partitions; changed by `release` only."""
        self._with_rows = partitions
        self._wakes: list[Wake] = []

    @property
    def enough(self) -> bool:
        """Whether `min_messages` are delivered."""
        return self.delivered >= self.min_messages

    @property
    def full(self) -> bool:
        """Whether `max_messages` are delivered."""
        return self.delivered >= self.max_messages

    def wake_when_enough(self, wake: Wake) -> None:
        """Set this event as soon as the request has enough; at once if it has."""
        with self._lock:
            self._wakes.append(wake)
            if self.enough:
                wake.set()

    def recount(self, partitions: int) -> None:
        """Count so many more of the partitions, or fewer, among those that still have rows."""
        with self._lock:
            self._with_rows += partitions

    def reserve(self, rows: int, partitions: int = 1) -> int:
        """Reserve up to `rows` of the budget and return how many were granted.

        A slice of so many `partitions` is at most their share of what remains, divided by the
        number of those that still have rows, and one row at least. Where all that
        remains is reserved by others, blocks until they deliver it or give it back, which takes as
        long as their read of a page. 0 means that the request is full.
        """
        assert rows >= 1
        with self._lock:
            while True:
                remaining = self.max_messages - self.delivered - self._reserved
                if remaining > 0:
                    share = max(1, remaining * partitions // max(partitions, self._with_rows))
                    granted = min(rows, share)
                    self._reserved += granted
                    return granted
                if self.full:
                    return 0
                self._lock.wait()

    def release(self, reserved: int, delivered: int) -> None:
        """Turn a reservation into rows delivered; the rest of it goes back to the budget."""
        assert 0 <= delivered <= reserved
        with self._lock:
            self._reserved -= reserved
            self.delivered += delivered
            self._lock.notify_all()
            if self.enough:
                for wake in self._wakes:
                    wake.set()


class Waits:
    """Counts the readers that wait, over Flight and HTTP; all methods from any thread.

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
        """Count one wait, during a `with` block, which many threads may be in at a time.

        Raises:
            ResourceExhausted: So many wait already; by the block.
        """
        return self

    def __enter__(self) -> None:
        """Count one more."""
        with self._lock:
            if self._waiting >= self._waiting_max:
                raise ResourceExhausted(f"{self._waiting_max} readers wait for messages already")
            self._waiting += 1
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        """Count one less."""
        with self._lock:
            self._waiting -= 1
