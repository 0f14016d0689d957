"""Tiering: a partition's old pages are merged into segments in the remote store.

    find due ─▶ read, merge, compress ─▶ put the segment ─▶ replace the pages, group by group

Until the segment is put, nothing has happened. After that it is an object that nothing refers to,
which the reclaimer deletes some time if it stays so. Each replacement is one transaction, which
looks whether all the pages are still there just as they were, and whether the lease under which
they were read is still held. So it may end anywhere, and another node may have worked meanwhile:
each message is in one place, and the pages that are left are due again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from wings_core.fetch.pages import PageReader
from wings_core.maintain.plan import MERGED_BYTES, MERGED_ROWS, find_due, groups_of
from wings_core.maintain.report import MaintenanceReport
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.maintenance import Lease, Maintenance
from wings_core.model import Location, PageAddress, PartitionState, Topic
from wings_core.partitions import Partition
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.segment_file import TIMESTAMP_FIELD, SegmentWriter
from wings_core.storage.segment_objects import SegmentObjects
from wings_core.times import now_us

SETTLED_MAX = 65_536
"""Partitions of which it is remembered how far nothing will move any more."""

COMMIT_SECONDS_MAX = 600.0
"""A segment that was begun longer ago is given up: it may be taken for a left-over soon."""


class Tiering:
    """Moves pages of one partition at a time; used by one thread at a time.

    Args:
        registry: Where pages are found.
        maintenance: Replaces them.
        store: Where they are read.
        remote: Where segments go.
        after_ms_default: Of topics that do not say when their messages move; None: never.
        clock: Microseconds since the epoch.
    """

    def __init__(
        self,
        registry: OffsetRegistry,
        maintenance: Maintenance,
        store: FolioStore,
        remote: SegmentObjects,
        after_ms_default: int | None,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._registry = registry
        self._maintenance = maintenance
        self._pages = PageReader(store)
        self._remote = remote
        self._after_ms_default = after_ms_default
        self._clock = clock
        self._settled: Lru[tuple[str, Partition], int] = Lru(SETTLED_MAX)

    def after_ms(self, topic: Topic) -> int | None:
        """Return the age at which a topic's messages move, in milliseconds; None: never."""
        configured = topic.config.tier_after_ms
        return self._after_ms_default if configured is None else configured

    def due(self, topic: Topic, state: PartitionState) -> tuple[Location, ...]:
        """Return the pages of a partition that become the next segment; none where none are due."""
        after_ms = self.after_ms(topic)
        if after_ms is None:
            return ()
        key = (topic.uuid, state.partition)
        offset = max(state.log_start_offset, self._settled.get(key) or 0)
        found = find_due(
            self._locations(topic, state.partition, offset, state.next_offset),
            offset,
            self._clock(),
            after_ms * 1_000,
            topic.config.segment_bytes,
        )
        self._settled.put(key, found.settled_offset)
        return found.pages

    def tier(
        self,
        topic: Topic,
        state: PartitionState,
        lease: Lease,
        report: MaintenanceReport,
        proceed: Callable[[], bool],
    ) -> None:
        """Move all that is due in a partition.

        Args:
            topic: With its configuration.
            state: Of the partition.
            lease: Of the partition, held.
            report: What was moved is counted to it.
            proceed: Prolongs the lease; asked before each further step.
        """
        while pages := self.due(topic, state):
            if not self._move(topic, state.partition, pages, lease, report, proceed):
                return

    def _move(
        self,
        topic: Topic,
        partition: Partition,
        pages: Sequence[Location],
        lease: Lease,
        report: MaintenanceReport,
        proceed: Callable[[], bool],
    ) -> bool:
        """Write one segment and put it into the place of pages; tell whether to go on."""
        until = time.monotonic() + COMMIT_SECONDS_MAX
        name = self._remote.name(topic.uuid, pages[0].start_offset)
        writer = SegmentWriter(topic.uuid, topic.schema, _about(topic, partition, pages))
        groups: list[tuple[list[Location], list[Location]]] = []
        for group in groups_of(pages):
            groups.append((group, list(self._merge(topic, group, name, writer))))
            if not proceed():
                return False
        self._remote.objects.put(name, writer.finish())
        report.segments += 1
        report.segment_bytes += writer.length
        for old, new in groups:
            if time.monotonic() > until or not proceed():
                return False
            if not self._maintenance.replace(topic.uuid, partition, old, new, lease):
                return False
            report.pages_merged += len(old)
            report.rows_merged += sum(page.rows for page in old)
            report.bytes_merged += sum(page.address.length for page in old)
        return proceed()

    def _merge(
        self, topic: Topic, group: Sequence[Location], name: str, writer: SegmentWriter
    ) -> Iterator[Location]:
        """Write the rows of some pages to a segment, and yield where they are then."""
        batches: list[pa.RecordBatch] = []
        for rows, times in self._pages.read(topic, group, timestamps=True):
            column = _repeated(times, rows.num_rows) if isinstance(times, int) else times
            batches.append(
                pa.RecordBatch.from_arrays([*rows.columns, column], schema=writer.schema)
            )
        merged = pa.concat_batches(batches) if len(batches) > 1 else batches[0]  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        start_offset = group[0].start_offset
        step = max(1, min(MERGED_ROWS, merged.num_rows * MERGED_BYTES // max(1, merged.nbytes)))
        for first in range(0, merged.num_rows, step):
            part = merged.slice(first, step)
            position, length = writer.write(part)
            times = part.column(part.num_columns - 1).cast(pa.int64())
            yield Location(
                start_offset + first,
                start_offset + first + part.num_rows - 1,
                times[-1].as_py(),
                PageAddress(name, position, length),
                times[0].as_py(),
            )

    def _locations(
        self, topic: Topic, partition: Partition, offset: int, end_offset: int
    ) -> Iterator[Location]:
        """Yield a partition's pages from an offset on, in steps of one `locate` each."""
        while offset < end_offset:
            found = self._registry.locate(
                topic.uuid, partition, offset, end_offset - offset
            ).locations
            if not found:
                return
            yield from found
            offset = found[-1].end_offset + 1


def _about(topic: Topic, partition: Partition, pages: Sequence[Location]) -> dict[str, str]:
    """Return what is said of a segment to those who read the file."""
    return {
        "wings.topic": str(topic.name),
        "wings.topic_uuid": topic.uuid,
        "wings.partition": partition,
        "wings.start_offset": str(pages[0].start_offset),
    }


def _repeated(timestamp: int, rows: int) -> "pa.Array[Any]":
    values = timestamp.to_bytes(8, "little", signed=True) * rows
    return pa.Array.from_buffers(TIMESTAMP_FIELD.type, rows, [None, pa.py_buffer(values)])
