"""Look-ups that are kept: where the pages of many partitions lie, for the next read of the same.

Pages never change, and the page in which an offset was found holds its row for as long as it is
kept. So a look-up that is out of date is never wrong: a page that was merged or deleted meanwhile
cannot be read, and its reader looks again, in metadata.
"""

from collections.abc import Callable, Sequence

from wings_core.fetch.many.pieces import Plan, plan_of
from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.metadata.located import ManyLocated
from wings_core.model import PageFormat, Topic
from wings_core.partitions import Partition
from wings_core.storage.lru import Lru

LOOKUP_BYTES_MAX = 64 * 1024 * 1024
"""What all look-ups kept take, about; those unused for longest are forgotten."""

LOOKUP_SLICES_MIN = 64
"""The least slices of a look-up that is kept: of fewer, metadata answers soon enough."""

POSITION_BYTES = 200
"""What a position that is looked up takes, about."""

SLICE_BYTES = 400
"""What is kept of a slice, about: its row, its place in a plan, and the range that tells of it."""

Positions = Sequence[tuple[Partition, int]]
"""Partitions, and the offset from which each is read."""


class Lookup:
    """Where the next rows of partitions lie, as metadata had it at one moment."""

    def __init__(self, located: ManyLocated) -> None:
        self.located = located
        self._planned: tuple[Sequence[int], Plan] | None = None

    def plan(self, cursors: Sequence[PartitionCursor], rows_each: int) -> Plan:
        """Return the pieces to be read; see `plan_of`. From the second time on, those of the first.

        Args:
            cursors: The partitions, at the offsets that were looked up.
            rows_each: The most rows of each, the same at each call.
        """
        ends = self.located.log_end_offsets
        stops = [min(cursor.stop, end) for cursor, end in zip(cursors, ends, strict=False)]
        planned = self._planned
        if planned is None or planned[0] != stops:
            self._planned = planned = stops, plan_of(cursors, self.located, rows_each)
        return planned[1]


class KeptLookups:
    """What `OffsetRegistry.locate_slices` found lately; all methods may be called by any thread."""

    def __init__(self) -> None:
        self._kept: Lru[tuple[str, int, Positions], Lookup] = Lru(
            LOOKUP_BYTES_MAX, group_of=lambda key: key[0]
        )

    def find(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        rows_each: int,
        locate: Callable[[Positions], ManyLocated],
    ) -> Lookup:
        """Return where the next rows of partitions lie; where it is kept, as of an earlier moment.

        Kept is what has pages for each of them: to those without, something may be committed. And
        not the pages that metadata keeps, as they move within a second.

        Args:
            topic: Whose partitions they are.
            cursors: The partitions, with rows to be read.
            rows_each: The most rows of each.
            locate: Looks in metadata.
        """
        positions = tuple([(cursor.partition, cursor.offset) for cursor in cursors])
        key = (topic.uuid, rows_each, positions)
        found = self._kept.get(key)
        if found is None:
            found = Lookup(located := locate(positions))
            if located.slices.num_rows >= LOOKUP_SLICES_MIN and _is_lasting(located):
                size = SLICE_BYTES * located.slices.num_rows + POSITION_BYTES * len(positions)
                self._kept.put(key, found, size)
        return found

    def discard(self, topic: Topic) -> None:
        """Forget the look-ups of a topic, pages of which lie elsewhere by now."""
        self._kept.discard_group(topic.uuid)


def _is_lasting(found: ManyLocated) -> bool:
    """Tell whether each position looked at has a page, and all pages stay where they lie."""
    places, formats = found.slices.column("place"), found.slices.column("format")
    lasting = PageFormat.INLINE.value not in formats.unique().to_pylist()
    return lasting and len(places.unique()) == len(found)
