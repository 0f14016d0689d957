"""A queue of files found by scanning, for directories and buckets without notifications.

Each file is a message of a SQLite queue with a key of its own, which is kept, acknowledged or not,
until the file is deleted.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from wings_core.queue.interfaces import QueueMessage
from wings_core.queue.sqlite import SqliteQueue


class FoundQueue(SqliteQueue, ABC):
    """A `SqliteQueue` that looks for new files when messages are received.

    Args:
        state: The database; its directory is created if it is missing.
        clock: Returns seconds since the epoch.
        pause_seconds: Interval of polling an empty queue.

    Raises:
        Unavailable: The database cannot be opened.
    """

    def __init__(
        self, state: Path, *, clock: Callable[[], float] = time.time, pause_seconds: float
    ) -> None:
        state.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(state, clock=clock)
        self._pause_seconds = pause_seconds

    @abstractmethod
    def _look(self) -> bool:
        """Announce new files and forget deleted ones; returns whether the scan must continue.

        May be called from any thread.
        """

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive new files, in the order in which they were found; see `Queue.receive`.

        Blocks for longer than `wait_seconds` while a scan continues without finding new files, as
        only its end shows that there are none.
        """
        until = time.monotonic() + wait_seconds
        while True:
            has_more = self._look()
            found = super().receive(messages_max, visibility_seconds)
            if found or self._closed.is_set():
                return found
            left = until - time.monotonic()
            if not has_more and (left <= 0 or self._closed.wait(min(self._pause_seconds, left))):
                return found
