"""The rotation: which partition of many is read next, so that none starves."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import is_

from wings_core.partitions import Partition


@dataclass(slots=True, eq=False)
class PartitionCursor:
    """Where the read of one partition stands."""

    partition: Partition
    offset: int
    """Where to read on."""
    stop: int
    """Where to stop for now, exclusive: a scan's end, else where the log is known to end."""
    log_end: int
    """The next offset to be assigned, as of the last look."""
    clamps: bool
    """Whether what retention takes is skipped; else it is an error."""
    is_born: bool = True
    """Whether anything was ever written to it."""
    moves: int = 0
    """How often its page was looked for again since it last moved."""
    queued: bool = False
    """Whether the rotation has it among those with rows."""

    @property
    def has_rows(self) -> bool:
        """Whether there is something to read."""
        return self.offset < self.stop


class Rotation:
    """The partitions of one read; those with rows take turns.

    A partition whose turn it was goes to the back if it has more, so every partition with rows has
    its turn after at most one turn of each other. For one thread.
    """

    def __init__(self, cursors: Iterable[PartitionCursor] = ()) -> None:
        self._cursors: dict[Partition, PartitionCursor] = {}
        self._ready: deque[PartitionCursor] = deque()
        self.add_all(cursors)

    @property
    def cursors(self) -> Iterable[PartitionCursor]:
        """All partitions, in the order in which they came."""
        return self._cursors.values()

    @property
    def ready(self) -> int:
        """How many partitions have rows."""
        return len(self._ready)

    def find(self, partition: Partition) -> PartitionCursor | None:
        """Return a partition's cursor, None where it is not read."""
        return self._cursors.get(partition)

    def add(self, cursor: PartitionCursor) -> None:
        """Add a partition, see `add_all`."""
        self.add_all((cursor,))

    def add_all(self, cursors: Iterable[PartitionCursor]) -> None:
        """Add partitions that are not read yet; one with messages has its turn after all others."""
        known, ready = self._cursors, self._ready
        for cursor in cursors:
            assert cursor.partition not in known
            known[cursor.partition] = cursor
            if cursor.offset < cursor.stop:
                cursor.queued = True
                ready.append(cursor)

    def extend(self, cursor: PartitionCursor, log_end: int) -> None:
        """Record that a partition's log ends at an offset, and read on to there."""
        if not cursor.is_born and log_end > 0:
            # It was born after the request came: it is read from its first message.
            cursor.is_born, cursor.clamps = True, True
            cursor.offset = 0
        cursor.log_end = max(cursor.log_end, log_end)
        cursor.stop = max(cursor.stop, log_end)
        self._queue(cursor)

    def skip(self, cursors: int) -> None:
        """Begin with another partition: so many of those with rows go to the back."""
        self._ready.rotate(-cursors)

    def begins_with(self, cursors: Sequence[PartitionCursor]) -> bool:
        """Tell whether these are the partitions whose turn is next, or the first of them."""
        if len(cursors) > len(self._ready):
            return False
        return all(map(is_, cursors, self._ready))

    def turn(
        self, rows_each: int, rows_max: int, cursors_max: int, *, after: int = 0
    ) -> Sequence[PartitionCursor]:
        """Return the partitions whose turn it is, one at least where one has rows.

        Args:
            rows_each: How many rows of each are read in a turn, at most `rows_max`.
            rows_max: The most rows of all of them together.
            cursors_max: The most partitions.
            after: So many of those with rows have their turn before.
        """
        taken: list[PartitionCursor] = []
        for cursor in islice(self._ready, after, after + cursors_max):
            rows = cursor.stop - cursor.offset
            rows_max -= rows if rows < rows_each else rows_each
            if rows_max < 0:
                break
            taken.append(cursor)
        return taken

    def rotate(self, cursors: int, before: Sequence[int]) -> None:
        """End a turn.

        Args:
            cursors: How many of the partitions it came to, from the first on.
            before: The offsets at which they stood when it began: those that did not move stay in
                front, as they have not had their turn.
        """
        moved: list[PartitionCursor] = []
        waiting: list[PartitionCursor] = []
        for offset in before[:cursors]:
            cursor = self._ready.popleft()
            cursor.queued = False
            if cursor.offset > offset:
                cursor.moves = 0
            if cursor.offset < cursor.stop:
                (moved if cursor.offset > offset else waiting).append(cursor)
        for cursor in reversed(waiting):
            cursor.queued = True
            self._ready.appendleft(cursor)
        for cursor in moved:
            self._queue(cursor)

    def _queue(self, cursor: PartitionCursor) -> None:
        if cursor.offset < cursor.stop and not cursor.queued:
            cursor.queued = True
            self._ready.append(cursor)
