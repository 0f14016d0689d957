"""Caches of reads: chunks that followers share, and look-ups of pages.

Committed rows never change, so neither is ever wrong: rows at an offset stay those rows, and the
page in which an offset was found holds its row for as long as it is kept. A page that was merged or
deleted meanwhile cannot be read, and its reader looks again, in metadata.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.plan import Plan, plan_of, plan_of_slices
from wings_core.metadata.interfaces.offset_registry import ManyLocated
from wings_core.model import LocatedPartition, PageFormat, Topic
from wings_core.partitions import Partition
from wings_core.storage.lru import Lru

SHARED_READS_MAX = 64
"""Places whose chunks are kept."""

SHARED_BYTES_MAX = 128 * 1024
"""Chunks of a place are kept where they have no more stored bytes: larger ones cost more to send
than to read, and would be a copy."""

LOOKUP_BYTES_MAX = 64 * 1024 * 1024
"""Memory of all look-ups kept, about; the least recently used are forgotten."""

LOOKUP_SLICES_MIN = 64
"""The least slices of a look-up that is kept: of fewer, metadata answers soon enough."""

POSITION_BYTES = 200
"""Memory of a position in a look-up, about."""

SLICE_BYTES = 400
"""Memory of a slice in a look-up, about: its row, its place in a plan, and its range."""

T = TypeVar("T")

Positions = Sequence[tuple[Partition, int]]
"""Partitions, and the offset from which each is read."""

Pages = Sequence[LocatedPartition] | ManyLocated
"""Pages of partitions, one by one or as columns."""


@dataclass(slots=True)
class _Place(Generic[T]):
    """One place of the log, as some readers want it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the first reader while it reads."""
    value: T | None = None


class SharedReads(Generic[T]):
    """Reads that many followers share; all methods may be called from any thread.

    A commit wakes all followers of a partition, most of them at the same offset and with the same
    wishes. The first looks up, reads, merges and filters; the others take its chunks. Its locks are
    leaves of the order, but for those of the read itself.
    """

    def __init__(self) -> None:
        self._places: Lru[Hashable, _Place[T]] = Lru(SHARED_READS_MAX)
        self._lock = threading.Lock()
        """Held while a place is added, so that it is added once."""

    def get(self, key: Hashable, read: Callable[[], T | None]) -> T | None:
        """Return what is read at a place, read once for all who ask at about the same time.

        A caller waits for one read of another at most: where that brought nothing, all who waited
        for it read by themselves, or each would wait for all before it.

        Args:
            key: Tells place, columns and filter.
            read: Reads there; None where that is not to be shared. What it raises is this caller's
                alone.
        """
        place = self._places.get(key)
        if place is None:
            with self._lock:
                place = self._places.get(key)
                if place is None:
                    self._places.put(key, place := _Place[T]())
        if place.value is not None:
            return place.value
        if place.lock.acquire(blocking=False):
            try:
                if place.value is None:
                    place.value = read()
            finally:
                place.lock.release()
            return place.value
        with place.lock:
            pass
        return read() if place.value is None else place.value


def copied(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return batches in memory of their own: what is kept must not hold a file that is deleted."""
    return [pa.ipc.read_record_batch(batch.serialize(), batch.schema) for batch in batches]


class Lookup:
    """Where the next rows of partitions lie, as metadata had it at one moment.

    Args:
        located: The pages of the first of the partitions that were looked up, one at least.
        looked_at: When the look began, by the monotonic clock.

    Attributes:
        bounds: For each of them where its log starts and ends.
        has_pages: For each of them whether there are rows.
    """

    def __init__(self, located: Pages, looked_at: float) -> None:
        self.looked_at = looked_at
        self._located = located
        if isinstance(located, ManyLocated):
            self.bounds = list(zip(located.log_start_offsets, located.log_end_offsets, strict=True))
            places = set(located.slices.column("place").unique().to_pylist())
            self.has_pages = [place in places for place in range(len(located))]
        else:
            states = [state for state, _ in located]
            self.bounds = [(state.log_start_offset, state.next_offset) for state in states]
            self.has_pages = [bool(pages) for _, pages in located]
        self._planned: tuple[tuple[int, Sequence[int]], Plan] | None = None

    def plan(self, cursors: Sequence[PartitionCursor], rows_each: int) -> Plan:
        """Return the plan that reads them. From the second time on, that of the first.

        Args:
            cursors: The partitions, at the offsets that were looked up.
            rows_each: The most rows of each.
        """
        stops = [min(each.stop, end) for each, (_, end) in zip(cursors, self.bounds, strict=False)]
        key = rows_each, stops
        planned = self._planned
        if planned is None or planned[0] != key:
            located = self._located
            if isinstance(located, ManyLocated):
                plan = plan_of_slices(cursors, located, rows_each)
            else:
                plan = plan_of(cursors, [pages for _, pages in located], rows_each)
            self._planned = planned = key, plan
        return planned[1]

    @property
    def slices(self) -> int:
        """How many slices of pages were found."""
        located = self._located
        if isinstance(located, ManyLocated):
            return located.slices.num_rows
        return sum([len(pages) for _, pages in located])

    @property
    def is_lasting(self) -> bool:
        """Whether each position looked at has a page, and all pages stay where they lie.

        To a partition without pages something may be committed; and those that metadata keeps move
        within a second.
        """
        located = self._located
        if not all(self.has_pages):
            return False
        if isinstance(located, ManyLocated):
            formats = located.slices.column("format").unique().to_pylist()
            return PageFormat.INLINE.value not in formats
        return all(page.format is not PageFormat.INLINE for _, pages in located for page in pages)


class KeptLookups:
    """Look-ups made lately; all methods may be called by any thread."""

    def __init__(self) -> None:
        self._kept: Lru[tuple[str, int, Positions], Lookup] = Lru(
            LOOKUP_BYTES_MAX, group_of=lambda key: key[0]
        )

    def find(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        rows_each: int,
        locate: Callable[[Positions], Pages],
    ) -> Lookup:
        """Return where the next rows of partitions lie; where it is kept, as of an earlier moment.

        Args:
            topic: The topic.
            cursors: The partitions, with rows to be read.
            rows_each: The most rows of each.
            locate: Looks in metadata.
        """
        positions = tuple([(cursor.partition, cursor.offset) for cursor in cursors])
        key = (topic.uuid, rows_each, positions)
        found = self._kept.get(key)
        if found is None:
            looked_at = time.monotonic()
            found = Lookup(locate(positions), looked_at)
            if found.slices >= LOOKUP_SLICES_MIN and found.is_lasting:
                size = SLICE_BYTES * found.slices + POSITION_BYTES * len(positions)
                self._kept.put(key, found, size)
        return found

    def discard(self, topic: Topic) -> None:
        """Forget the look-ups of a topic, pages of which lie elsewhere by now."""
        self._kept.discard_group(topic.uuid)
