"""Cursors: where a read stands in each of its partitions, and whose turn is next.

A read of one partition is a read of many of which there is one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from wings_core.errors import OffsetOutOfRange
from wings_core.model import PartitionState
from wings_core.partitions import Partition, Slots, partition_value, slot_of

UNKNOWN = 1 << 63
"""The `stop` of a cursor whose log's end only a look at metadata tells."""

MOVES_MAX = 8
"""How often one page is looked for again, where it is not where it was: maintenance moves a page
once, and what it moved again much later."""


class Chosen:
    """The partitions that a read is of.

    Args:
        named: The partitions, each once; None: all, those born during the read too.
        slots: Slots of the partitions among all, as a mask; None: all slots.
        slot_of: Returns a partition's slot.

    Attributes:
        named: The partitions, or None.
    """

    def __init__(
        self,
        named: Sequence[Partition] | None,
        slots: Slots | None = None,
        slot_of: Callable[[Partition], int] = slot_of,
    ) -> None:
        self.named = named
        self._set = None if named is None else frozenset(named)
        self._slots = slots
        self._slot_of = slot_of

    def __contains__(self, partition: Partition) -> bool:
        """Tell whether the read is of a partition, born or not."""
        if self._set is not None:
            return partition in self._set
        return self._slots is None or bool(self._slots >> self._slot_of(partition) & 1)

    def of(self, states: list[PartitionState]) -> list[PartitionState]:
        """Return those of all partitions that the read is of."""
        if self._slots is None:
            return states
        return [state for state in states if state.partition in self]


@dataclass(slots=True, eq=False)
class PartitionCursor:
    """Where the read of one partition stands."""

    partition: Partition
    offset: int
    """Where to read on."""
    stop: int = UNKNOWN
    """Where to stop for now, exclusive: a scan's end, else where the log is known to end."""
    log_end: int = 0
    """The next offset to be assigned, as of the last look."""
    log_start: int = -1
    """The first offset that is kept, as of the last look; -1 before it."""
    clamps: bool = False
    """Whether what retention takes is skipped, as in reads from `"earliest"`; else it is an
    error."""
    is_born: bool = True
    """Whether anything was ever written to it; one that is born later is read from offset 0."""
    is_over: bool = False
    """Whether nothing more of it is read."""
    moves: int = 0
    """How often its page was looked for again since it last moved."""
    queued: bool = False
    """Whether the rotation has it among those with rows."""

    def end(self) -> None:
        """Read no more of it."""
        self.is_over = True
        self.stop = self.offset


class Rotation:
    """The partitions of one read; those with rows take turns.

    A partition whose turn it was goes to the back if it has more, so every partition with rows has
    its turn after at most one turn of each other. For one thread.
    """

    def __init__(self, cursors: Iterable[PartitionCursor] = ()) -> None:
        self.cursors: dict[Partition, PartitionCursor] = {}
        """All partitions, in the order in which they came; changed by `add_all` only."""
        self._ready: deque[PartitionCursor] = deque()
        self.add_all(cursors)

    @property
    def ready(self) -> int:
        """How many partitions have rows, or may have some."""
        return len(self._ready)

    def add_all(self, cursors: Iterable[PartitionCursor]) -> None:
        """Add partitions that are not read yet; one with messages has its turn after all others."""
        for cursor in cursors:
            assert cursor.partition not in self.cursors
            self.cursors[cursor.partition] = cursor
            self._queue(cursor)

    def extend(self, cursor: PartitionCursor, log_end: int) -> None:
        """Record that a partition's log ends at an offset, and read on to there."""
        if cursor.is_over:
            return
        if not cursor.is_born and log_end > 0:
            # It was born after the request came: it is read from its first message.
            cursor.is_born, cursor.clamps = True, True
            cursor.offset = 0
        cursor.log_end = max(cursor.log_end, log_end)
        cursor.stop = max(cursor.stop, log_end)
        self._queue(cursor)

    def look_again(self) -> None:
        """Have all partitions looked at, as anything may have been committed to them."""
        for cursor in self.cursors.values():
            if not cursor.is_over:
                cursor.stop = UNKNOWN
                self._queue(cursor)

    def skip(self, cursors: int) -> None:
        """Begin with another partition: so many of those with rows go to the back."""
        self._ready.rotate(-cursors)

    def turn(self, rows_each: int, rows_max: int, cursors_max: int) -> Sequence[PartitionCursor]:
        """Return the partitions whose turn it is, one at least where one has rows.

        Args:
            rows_each: How many rows of each are read in a turn, at most `rows_max`.
            rows_max: The most rows of all of them together.
            cursors_max: The most partitions.
        """
        taken: list[PartitionCursor] = []
        for cursor in islice(self._ready, cursors_max):
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


def below_start(partition: Partition, offset: int, log_start_offset: int) -> OffsetOutOfRange:
    """Return the error of an offset below a partition's start."""
    return OffsetOutOfRange(
        f"offset {offset} of partition {partition:.80} is below the log's start, "
        f"{log_start_offset}",
        partition=partition_value(partition),
        log_start_offset=log_start_offset,
    )
