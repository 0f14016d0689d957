"""A queue of what is found, where nothing announces it: files of a directory, objects of a bucket.

Each is a message of a SQLite queue under a key of its own, which stays, acknowledged or not, until
the file is deleted.
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
        clock: Seconds since the epoch.
        pause_seconds: Between two looks at an empty queue.

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
        """Announce what is new and forget what is gone; returns whether there is more to look at.

        Called by any thread.
        """

    def receive(
        self, messages_max: int, visibility_seconds: float, wait_seconds: float = 0.0
    ) -> list[QueueMessage]:
        """Receive new files, in the order in which they were found; see `Queue.receive`.

        Blocks for longer than `wait_seconds` while there is more to look at and nothing new: that
        there is nothing more is known at its end alone.
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
