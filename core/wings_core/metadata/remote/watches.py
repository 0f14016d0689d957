"""Watches: long polls at the metadata service, one call for all who wait at one position.

wait / watch ─▶ Deduplicate by (topic, partition, offset) ─▶ OffsetLocation, with a deadline
"""

import logging
import random
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from wings_core.errors import ResourceExhausted, TopicNotFound
from wings_core.metadata.remote.deduplicate import Deduplicate, Outcome, Waiter
from wings_core.metadata.remote.retries import Retries
from wings_core.metadata.waiters import WATCHES_MAX
from wings_core.model import Located, Position
from wings_core.partitions import Partition
from wings_core.times import Deadline

RETRY_SECONDS = (0.05, 1.0)
"""After a call failed, the next is made after a pause between these, which doubles each time."""

_logger = logging.getLogger(__name__)


class Watches:
    """The waits of this node; safe from many threads.

    Args:
        locations: Long polls; the deadline of a watch without one bounds each call.
        retries: Calls back after a pause.
    """

    def __init__(self, locations: Deduplicate[Position, Located], retries: Retries) -> None:
        self._locations = locations
        self._retries = retries
        self._lock = threading.Lock()
        self._watched = 0

    @contextmanager
    def watch(
        self,
        positions: Sequence[Position],
        deadline: Deadline,
        callback: Callable[[], None],
    ) -> Generator[None]:
        """Call back during the block when a position has a message, or its topic is gone.

        Args:
            positions: All at once.
            deadline: When the caller stops waiting; never for as long as the block lasts.
            callback: As of `OffsetRegistry.watch`.

        Raises:
            ResourceExhausted: Too many are watched already.
        """
        offsets: dict[tuple[str, Partition], int] = {}
        for position in positions:
            key = (position.topic_uuid, position.partition)
            offsets[key] = min(position.offset, offsets.get(key, position.offset))
        self._count(len(offsets))
        watching: list[_Watching] = []
        try:
            for (topic_uuid, partition), offset in offsets.items():
                one = _Watching(
                    self._locations,
                    self._retries,
                    Position(topic_uuid, partition, offset),
                    deadline,
                    callback,
                )
                watching.append(one)
                one.begin()
            yield
        finally:
            for one in watching:
                one.end()
            self._count(-len(offsets))

    def _count(self, watched: int) -> None:
        with self._lock:
            if watched > 0 and self._watched + watched > WATCHES_MAX:
                raise ResourceExhausted(f"{WATCHES_MAX} wait for messages already")
            self._watched += watched


class _Watching:
    """One position that is watched, from call to call."""

    def __init__(
        self,
        locations: Deduplicate[Position, Located],
        retries: Retries,
        position: Position,
        deadline: Deadline,
        callback: Callable[[], None],
    ) -> None:
        self._locations = locations
        self._retries = retries
        self._position = position
        self._deadline = deadline
        self._callback = callback
        self._lock = threading.Lock()
        self._waiter: Waiter[Position, Located] | None = None
        self._calls = 0
        self._ended = False
        self._pause = RETRY_SECONDS[0]

    def begin(self) -> None:
        """Wait for the next message at the position."""
        if self._ended:
            return
        with self._lock:
            self._calls += 1
            call = self._calls
        waiter = self._locations.join(self._position, self._deadline, self._hear)
        with self._lock:
            if call == self._calls:  # Else it was answered, and the next has begun meanwhile.
                self._waiter = waiter
            ended = self._ended
        if ended:
            self._locations.leave(waiter)

    def end(self) -> None:
        """Stop; one callback may still be under way."""
        with self._lock:
            self._ended = True
            waiter = self._waiter
        if waiter is not None:
            self._locations.leave(waiter)

    def _hear(self, outcome: Outcome[Located]) -> None:
        if self._ended:
            return
        if outcome.value is not None:
            self._position = replace(self._position, offset=outcome.value.log_end_offset)
            self._pause = RETRY_SECONDS[0]
            # What is committed until the next call is made is seen by it: it looks first.
            self._retries.after(0, self.begin)
            self._call()
        elif isinstance(outcome.error, TopicNotFound):
            self._call()
        elif not self._deadline.passed:
            # The service is not there, or has no room. The pauses of many differ, or all of them
            # would come back at one moment.
            pause, self._pause = self._pause, min(2 * self._pause, RETRY_SECONDS[1])
            self._retries.after(pause * random.uniform(0.5, 1.0), self.begin)

    def _call(self) -> None:
        try:
            self._callback()
        except Exception:
            # The other waiters of the same call must be called back too.
            _logger.exception("a waiter's callback failed")
