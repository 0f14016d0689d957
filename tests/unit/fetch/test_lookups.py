"""Look-ups that are kept: which, until when, and that what is read by them is right."""

from collections.abc import Sequence

import pyarrow as pa

from wings_core.fetch.many import PartitionCursor
from wings_core.fetch.many.lookups import LOOKUP_SLICES_MIN, KeptLookups, Lookup, Positions
from wings_core.metadata.located import ManyLocated, many_located
from wings_core.model import (
    LocatedPartition,
    Location,
    PageAddress,
    PageFormat,
    PartitionState,
    Topic,
    TopicConfig,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition

TOPIC = Topic(
    TopicName.parse("tenants/default/namespaces/default/topics/t"),
    "uuid",
    pa.schema([pa.field("key", pa.int64())]),
    "key",
    TopicConfig(),
    0,
)

NAMES = [Partition(str(number)) for number in range(LOOKUP_SLICES_MIN)]


class Metadata:
    """Partitions of ten rows each, side by side in one page; counts the looks at it."""

    def __init__(self, *, rows: int = 10, page_format: PageFormat = PageFormat.PLAIN) -> None:
        self.looks = 0
        self.rows = rows
        self.format = page_format
        self.empty: set[Partition] = set()

    def locate(self, positions: Positions) -> ManyLocated:
        self.looks += 1
        address = PageAddress("folio", 0, 1_000)
        found: list[LocatedPartition] = []
        for index, (partition, _) in enumerate(positions):
            state = PartitionState(partition, 0, self.rows, 100, 5)
            page = Location(0, self.rows - 1, 5, address, None, self.format, self.rows * index, 100)
            found.append(LocatedPartition(state, () if partition in self.empty else (page,)))
        return many_located(found)


def cursors(names: Sequence[Partition] = NAMES, *, stop: int = 10) -> list[PartitionCursor]:
    return [PartitionCursor(name, 0, stop, stop, clamps=True) for name in names]


def look(kept: KeptLookups, metadata: Metadata, read: Sequence[PartitionCursor]) -> Lookup:
    return kept.find(TOPIC, read, 100, metadata.locate)


def test_the_next_read_of_the_same_partitions_looks_at_nothing() -> None:
    kept, metadata = KeptLookups(), Metadata()
    first = look(kept, metadata, cursors())
    assert look(kept, metadata, cursors()) is first
    assert metadata.looks == 1
    plan = first.plan(cursors(), 100)
    assert [(piece.rows, piece.segments) for piece in plan.pieces] == [(640, 64)]
    assert first.plan(cursors(), 100) is plan
    moved = [PartitionCursor(name, 5, 10, 10, clamps=True) for name in NAMES]
    assert look(kept, metadata, moved) is not first
    assert metadata.looks == 2


def test_a_read_that_ends_elsewhere_is_planned_for_itself() -> None:
    kept, metadata = KeptLookups(), Metadata()
    found = look(kept, metadata, cursors())
    whole = found.plan(cursors(), 100)
    part = look(kept, metadata, cursors(stop=7)).plan(cursors(stop=7), 100)
    assert sum(whole.rows) == 640
    assert sum(part.rows) == 64 * 7
    # What was committed since the look is not in it: it ends where it ended.
    assert sum(found.plan(cursors(stop=12), 100).rows) == 640
    assert metadata.looks == 1


def test_what_is_discarded_is_looked_up_again() -> None:
    kept, metadata = KeptLookups(), Metadata()
    look(kept, metadata, cursors())
    kept.discard(TOPIC)
    metadata.rows = 20
    assert sum(look(kept, metadata, cursors(stop=20)).plan(cursors(stop=20), 100).rows) == 64 * 20
    assert metadata.looks == 2


def test_pages_that_move_soon_partitions_without_pages_and_few_slices_are_not_kept() -> None:
    for metadata in (Metadata(page_format=PageFormat.INLINE), Metadata()):
        kept = KeptLookups()
        names = NAMES if metadata.format is PageFormat.INLINE else NAMES[1:]
        look(kept, metadata, cursors(names))
        look(kept, metadata, cursors(names))
        assert metadata.looks == 2
    kept, metadata = KeptLookups(), Metadata()
    metadata.empty = {NAMES[3]}
    look(kept, metadata, cursors())
    metadata.empty = set()
    found = look(kept, metadata, cursors())
    assert metadata.looks == 2
    assert sum(found.plan(cursors(), 100).rows) == 640
