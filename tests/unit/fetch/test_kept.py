"""What is kept of reads: look-ups of pages, and chunks that followers share."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
import pytest

from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.kept import (
    LOOKUP_SLICES_MIN,
    KeptLookups,
    Lookup,
    Pages,
    Positions,
    SharedReads,
    copied,
)
from wings_core.metadata.interfaces.offset_registry import many_located
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

    def __init__(
        self, *, rows: int = 10, page_format: PageFormat = PageFormat.PLAIN, columns: bool = True
    ) -> None:
        self.looks = 0
        self.columns = columns
        self.rows = rows
        self.format = page_format
        self.empty: set[Partition] = set()

    def locate(self, positions: Positions) -> Pages:
        self.looks += 1
        address = PageAddress("folio", 0, 1_000)
        found: list[LocatedPartition] = []
        for index, (partition, _) in enumerate(positions):
            state = PartitionState(partition, 0, self.rows, 100, 5)
            page = Location(0, self.rows - 1, 5, address, None, self.format, self.rows * index, 100)
            found.append(LocatedPartition(state, () if partition in self.empty else (page,)))
        return many_located(found) if self.columns else found


def cursors(names: Sequence[Partition] = NAMES, *, stop: int = 10) -> list[PartitionCursor]:
    return [PartitionCursor(name, 0, stop, stop, clamps=True) for name in names]


def look(kept: KeptLookups, metadata: Metadata, read: Sequence[PartitionCursor]) -> Lookup:
    return kept.find(TOPIC, read, 100, metadata.locate)


@pytest.mark.parametrize("columns", [True, False])
def test_the_next_read_of_the_same_partitions_looks_at_nothing(columns: bool) -> None:
    kept, metadata = KeptLookups(), Metadata(columns=columns)
    first = look(kept, metadata, cursors())
    assert look(kept, metadata, cursors()) is first
    assert metadata.looks == 1
    plan = first.plan(cursors(), 100)
    assert (plan.rows, len(plan.spans.rows)) == (640, 64)
    assert first.plan(cursors(), 100) is plan
    moved = [PartitionCursor(name, 5, 10, 10, clamps=True) for name in NAMES]
    assert look(kept, metadata, moved) is not first
    assert metadata.looks == 2


def test_a_read_that_ends_elsewhere_is_planned_for_itself() -> None:
    kept, metadata = KeptLookups(), Metadata()
    found = look(kept, metadata, cursors())
    whole = found.plan(cursors(), 100)
    part = look(kept, metadata, cursors(stop=7)).plan(cursors(stop=7), 100)
    assert whole.rows == 640
    assert part.rows == 64 * 7
    # What was committed since the look is not in it: it ends where it ended.
    assert found.plan(cursors(stop=12), 100).rows == 640
    assert metadata.looks == 1


def test_what_is_discarded_is_looked_up_again() -> None:
    kept, metadata = KeptLookups(), Metadata()
    look(kept, metadata, cursors())
    kept.discard(TOPIC)
    metadata.rows = 20
    assert look(kept, metadata, cursors(stop=20)).plan(cursors(stop=20), 100).rows == 64 * 20
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
    assert found.plan(cursors(), 100).rows == 640


READERS = 8


def test_readers_at_one_place_read_once() -> None:
    shared: SharedReads[int] = SharedReads()
    reads: list[int] = []
    begin = threading.Barrier(READERS)

    def read() -> int:
        reads.append(1)
        return 7

    def follow(_: int) -> int | None:
        begin.wait()
        return shared.get("here", read)

    with ThreadPoolExecutor(READERS) as threads:
        assert list(threads.map(follow, range(READERS))) == [7] * READERS
    assert len(reads) == 1


def test_what_is_not_to_be_shared_is_read_by_each() -> None:
    shared: SharedReads[int] = SharedReads()
    assert shared.get("here", lambda: None) is None
    assert shared.get("here", lambda: 1) == 1

    def fail() -> int:
        raise OSError("no luck")

    with pytest.raises(OSError, match="no luck"):
        shared.get("there", fail)
    assert shared.get("there", lambda: 2) == 2


class Watched:
    """A lock that tells of each thread that is about to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting = threading.Semaphore(0)
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self.waiting.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_those_who_waited_in_vain_do_not_wait_for_each_other() -> None:
    shared: SharedReads[int] = SharedReads()
    begun, ends, together = threading.Event(), threading.Event(), threading.Barrier(3, timeout=60)
    assert shared.get("here", lambda: None) is None
    place = shared._places.get("here")  # pyright: ignore[reportPrivateUsage] - whose lock is watched.
    assert place is not None
    place.lock = watched = cast("Any", Watched())

    def read_in_vain() -> int | None:
        begun.set()
        assert ends.wait(30)
        return None

    def read_together() -> int:
        together.wait()  # Broken where one of them reads after the other.
        return 7

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.get, "here", read_in_vain)
        assert begun.wait(30)
        others = [threads.submit(shared.get, "here", read_together) for _ in range(3)]
        assert all(watched.waiting.acquire(timeout=30) for _ in others)
        ends.set()
        assert first.result(30) is None
        assert [each.result(30) for each in others] == [7, 7, 7]


def test_a_copy_holds_nothing_of_what_it_was_copied_from() -> None:
    batch = pa.record_batch({"n": [1, None, 3], "text": ["a", None, "ccc"]})
    (copy,) = copied([batch.slice(1)])
    assert copy.equals(batch.slice(1))
    addresses = [
        {buffer.address for column in each.columns for buffer in column.buffers() if buffer}
        for each in (batch, copy)
    ]
    assert not addresses[0] & addresses[1]
