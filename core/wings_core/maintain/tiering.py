"""Tiering: merges a partition's old pages into segments in the remote store.

    find due ─▶ read, merge, compress ─▶ put the segment ─▶ replace the pages, group by group

A segment that was put is an unreferenced object at first, which the reclaimer deletes if it stays
so. Each replacement is one transaction, which checks that all pages are unchanged and that the
lease under which they were read is still held. Tiering may therefore stop at any point, and other
nodes may work meanwhile: each message is in one place, and the remaining pages are due again. A
damaged page stays in place, and the others are moved around it.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from wings_core.errors import InvalidSchema, StorageCorrupt
from wings_core.fetch.selection import timestamp_column
from wings_core.maintain.plan import SEGMENT_BYTES_MAX, MergeGroup, find_due, parts_of_rows
from wings_core.maintain.workers import HeldLease, MaintenanceReport
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.maintenance import Maintenance
from wings_core.model import Location, PageAddress, PageFormat, PartitionState, Topic
from wings_core.model.topics import TABLE_AFTER_MS
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import MERGES, MergedFile, Wanted, read_pages
from wings_core.storage.folio_stores import SegmentObjects
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.segment_file import segment_schema
from wings_core.storage.table_layout import layout_of, runs_of
from wings_core.times import now_us

FINAL_OFFSETS_MAX = 65_536
"""Most partitions whose final offsets are cached."""

DAMAGED_MAX = 65_536
"""Most damaged pages remembered; others are detected again."""

DAMAGED_PER_TURN_MAX = 100
"""Most damaged pages skipped in one task of a partition; one more ends the task."""

COMMIT_SECONDS_MAX = 600.0
"""Age at which an uncommitted segment is abandoned, as the reclaimer may delete it soon."""

REPLACED_PAGES = 1_000
"""Approximate pages replaced per metadata transaction, so that pushes never wait long for it."""

MERGING_BYTES_MAX = SEGMENT_BYTES_MAX
"""Approximate bound of the stored bytes of pages being merged by all threads, in memory; a single
segment may exceed it."""


class _Segment(NamedTuple):
    """A segment being built in memory."""

    name: str
    writer: MergedFile


_Replacement = tuple[list[Location], list[Location]]
"""Old pages, and their replacements."""

_logger = logging.getLogger(__name__)


class Tiering:
    """Moves pages of partitions; several threads may work on different partitions.

    Threads compress in turn, so that together they take about one core from readers and writers.

    Args:
        registry: Locates pages.
        maintenance: Replaces pages.
        store: Store that pages are read from.
        remote: Store that segments are written to.
        after_ms_default: Default age at which messages move; None for never.
        clock: Returns the time in microseconds since the epoch.
        has_room: Returns whether segments of so many bytes may be written now.
        versions: Finds schema versions newer than a topic's look-up; None if topics have one each.
    """

    def __init__(
        self,
        registry: OffsetRegistry,
        maintenance: Maintenance,
        store: FolioStore,
        remote: SegmentObjects,
        after_ms_default: int | None,
        clock: Callable[[], int] = now_us,
        has_room: Callable[[int], bool] = lambda size: True,
        versions: SchemaVersions | None = None,
    ) -> None:
        self._registry = registry
        self._maintenance = maintenance
        self._store = store
        self._remote = remote
        self._after_ms_default = after_ms_default
        self._clock = clock
        self._has_room = has_room
        self._versions = versions
        self._final_offsets: Lru[tuple[str, Partition, str | None], int] = Lru(FINAL_OFFSETS_MAX)
        self._damaged: Lru[PageAddress, bool] = Lru(DAMAGED_MAX)
        """Unreadable pages, which are not moved until the next start."""
        self._compressing = threading.Lock()
        """A leaf lock."""
        self._merging_bytes = 0
        self._merging_changed = threading.Condition()
        """A leaf lock."""

    def after_ms(self, topic: Topic) -> int | None:
        """Return the age in milliseconds at which a topic's messages move; None for never."""
        configured = topic.config.tier_after_ms
        if configured is None and topic.config.table is not None:
            return TABLE_AFTER_MS
        return self._after_ms_default if configured is None else configured

    def due(self, topic: Topic, state: PartitionState) -> tuple[Location, ...]:
        """Return the pages of a partition that become the next segment; empty if none are due."""
        after_ms = self.after_ms(topic)
        if after_ms is None:
            return ()
        table = layout_of(topic)
        key = (topic.uuid, state.partition, None if table is None else table.mark)
        offset = max(state.log_start_offset, self._final_offsets.get(key) or 0)
        found = find_due(
            self._locations(topic, state.partition, offset, state.next_offset),
            offset,
            self._clock(),
            after_ms * 1_000,
            topic.config.segment_bytes,
            self._damaged,
            table=table,
        )
        self._final_offsets.put(key, found.final_offset)
        size = sum(page.bytes for page in found.pages)
        return found.pages if self._has_room(size) else ()

    def tier(
        self,
        topic: Topic,
        state: PartitionState,
        held: HeldLease,
        report: MaintenanceReport,
        until: float,
    ) -> bool:
        """Move the due pages of a partition, a segment at a time.

        Args:
            topic: The topic with its configuration.
            state: State of the partition.
            held: The partition's lease.
            report: Receives the counts.
            until: Time by `time.monotonic` after which no further segment is begun.

        Returns:
            Whether more may be due.

        Raises:
            StorageCorrupt: More than `DAMAGED_PER_TURN_MAX` pages are damaged.
        """
        damaged = 0
        while pages := self.due(topic, state):
            with self._room(sum(page.bytes for page in pages)) as has_room:
                if not has_room:
                    return True
                try:
                    if not self._move(topic, state.partition, pages, held, report):
                        return False
                except StorageCorrupt as error:
                    # Nothing was moved yet. The pages before and after it move separately.
                    damaged += 1
                    if damaged > DAMAGED_PER_TURN_MAX or not self._remember(pages, error):
                        raise
                    report.failures += 1
                    _logger.warning("a page of %s stays where it is: %s", topic.name, error)
            if time.monotonic() >= until:
                return True
        return False

    def _remember(self, pages: Sequence[Location], error: StorageCorrupt) -> bool:
        """Remember the damaged page that an error names; returns False if it is not in `pages`.

        A page whose file is missing is not remembered: a directory may be mounted again later.
        """
        if error.facts.get("missing"):
            return False
        at = (error.facts.get("folio"), error.facts.get("position"))
        for page in pages:
            if (page.address.folio, page.address.position) == at:
                self._damaged.put(page.address, True)
                return True
        return False

    @contextmanager
    def _room(self, size: int) -> Generator[bool]:
        """Reserve a share of `MERGING_BYTES_MAX`; yields False if there is no room for long.

        Args:
            size: Stored bytes of the pages.
        """

        def has_room() -> bool:
            return not self._merging_bytes or self._merging_bytes + size <= MERGING_BYTES_MAX

        with self._merging_changed:
            if not self._merging_changed.wait_for(has_room, COMMIT_SECONDS_MAX):
                size = 0
            self._merging_bytes += size
        try:
            yield size > 0
        finally:
            with self._merging_changed:
                self._merging_bytes -= size
                self._merging_changed.notify_all()

    def _move(
        self,
        topic: Topic,
        partition: Partition,
        pages: Sequence[Location],
        held: HeldLease,
        report: MaintenanceReport,
    ) -> bool:
        """Write one segment and replace pages by it; returns whether to continue."""
        until = time.monotonic() + COMMIT_SECONDS_MAX
        if self._versions is not None:
            topic = self._versions.newest(topic, pages)
        try:
            segment = self._merge(topic, partition, pages, held, topic.config.merged_format)
        except (InvalidSchema, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if topic.config.merged_format is PageFormat.SEGMENT:
                raise
            _logger.warning("a segment of %s cannot be a Parquet file: %s", topic.name, error)
            segment = self._merge(topic, partition, pages, held, PageFormat.SEGMENT)
            for page in () if segment is None else chain(*(new for _, new in segment[1])):
                self._damaged.put(page.address, True)  # Do not try to rewrite it for a table again.
        if segment is None:
            return False
        files, written = segment
        for file in files:
            self._remote.objects.put(file.name, file.writer.finish())
            report.segments += 1
            report.segment_bytes += file.writer.length
        table = layout_of(topic)
        at_once = table is not None and table.has(files[0].name)
        for old, new in _whole(written) if at_once else _transactions(written):
            if time.monotonic() > until or not held.proceed():
                return False
            if not self._maintenance.replace(topic.uuid, partition, old, new, held.lease):
                return False
            report.pages_merged += len(old)
            report.rows_merged += sum(page.rows for page in old)
            report.bytes_merged += sum(page.bytes for page in old)
        return held.proceed()

    def _merge(
        self,
        topic: Topic,
        partition: Partition,
        pages: Sequence[Location],
        held: HeldLease,
        format_: PageFormat,
    ) -> tuple[list[_Segment], list[_Replacement]] | None:
        """Build a segment in memory; for a table, one for each period of its layout.

        Returns:
            The segments and the replacements; None if the lease was lost.

        Raises:
            InvalidSchema: The format has no type for a column.
            pa.ArrowInvalid: The format cannot hold a value.
            StorageCorrupt: A page is damaged.
        """
        codec = MERGES[format_]
        table = layout_of(topic) if format_ is PageFormat.PARQUET else None
        mark, period = ("", None) if table is None else (table.mark, table.period)
        files: list[_Segment] = []
        written: list[_Replacement] = []
        now: object = None
        for old, rows in self._groups(topic, pages, segment_schema(topic.schema)):
            new: list[Location] = []
            start_offset = old[0].start_offset
            for run in runs_of(rows, period):
                then = None if period is None else period(_times(run)[0].as_py())
                if not files or then != now:
                    name = self._remote.name(topic.uuid, start_offset, codec.suffix, mark)
                    writer = codec.begin_file(topic, _about(topic, partition, start_offset))
                    files.append(_Segment(name, writer))
                    now = then
                new += [
                    page._replace(format=format_)
                    for page in self._write(topic, run, start_offset, files[-1])
                ]
                start_offset += run.num_rows
            written.append((old, new))
            if not held.proceed():
                return None
        return files, written

    def _groups(
        self, topic: Topic, pages: Sequence[Location], schema: pa.Schema
    ) -> "Iterator[tuple[list[Location], pa.RecordBatch]]":
        """Read pages, and yield each group that becomes one page, with its rows as one batch."""
        group = MergeGroup()
        parts: list[tuple[pa.RecordBatch, int | pa.Array[Any]]] = []
        read = read_pages(self._store, topic, pages, Wanted(timestamps=True))
        for page, (rows, times, size) in zip(pages, read, strict=True):
            if not group.takes(page, size):
                yield group.pages, joined(parts, schema)
                group, parts = MergeGroup(), []
            group.add(page, size)
            parts.append((rows, times))
        yield group.pages, joined(parts, schema)

    def _write(
        self,
        topic: Topic,
        rows: pa.RecordBatch,
        start_offset: int,
        segment: _Segment,
    ) -> Iterator[Location]:
        """Write rows to a segment, and yield their new locations."""
        for first, count in parts_of_rows(rows.num_rows, rows.nbytes):
            part = rows.slice(first, count)
            with self._compressing:
                position, length = segment.writer.write(part)
            times = _times(part)
            yield Location(
                start_offset + first,
                start_offset + first + count - 1,
                times[-1].as_py(),
                PageAddress(segment.name, position, length),
                times[0].as_py(),
                schema_version=topic.schema_version,
            )

    def _locations(
        self, topic: Topic, partition: Partition, offset: int, end_offset: int
    ) -> Iterator[Location]:
        """Yield a partition's pages from an offset on, one `locate` at a time."""
        while offset < end_offset:
            found = self._registry.locate(
                topic.uuid, partition, offset, end_offset - offset
            ).locations
            if not found:
                return
            yield from found
            offset = found[-1].end_offset + 1


def _times(rows: pa.RecordBatch) -> "pa.Array[Any]":
    return rows.column(rows.num_columns - 1).cast(pa.int64())


def _about(topic: Topic, partition: Partition, start_offset: int) -> dict[str, str]:
    """Return the metadata of a segment's file, for other programs."""
    return {
        "wings.topic": str(topic.name),
        "wings.topic_uuid": topic.uuid,
        "wings.partition": partition,
        "wings.start_offset": str(start_offset),
        "wings.schema_version": str(topic.schema_version),
    }


def _whole(written: "Sequence[_Replacement]") -> "Iterator[_Replacement]":
    """Yield a single replacement, so that a segment is adopted as a whole or not at all."""
    yield (
        [page for old, _ in written for page in old],
        [page for _, new in written for page in new],
    )


def _transactions(written: "Sequence[_Replacement]") -> "Iterator[_Replacement]":
    """Yield the replacements of each transaction: up to `REPLACED_PAGES`, or one larger group."""
    old: list[Location] = []
    new: list[Location] = []
    for some_old, some_new in written:
        if old and len(old) + len(some_old) > REPLACED_PAGES:
            yield old, new
            old, new = [], []
        old += some_old
        new += some_new
    yield old, new


def joined(
    parts: "Sequence[tuple[pa.RecordBatch, int | pa.Array[Any]]]", schema: pa.Schema
) -> pa.RecordBatch:
    """Concatenate parts, each with its timestamps, into one batch.

    Args:
        parts: Batches of a topic's columns, and their timestamps in microseconds since the epoch:
            one for all rows, or one for each.
        schema: The topic's columns, then the timestamp.
    """
    batches = [rows for rows, _ in parts]
    merged = pa.concat_batches(batches) if len(batches) > 1 else batches[0]  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    times = timestamp_column([(times, rows.num_rows) for rows, times in parts])
    return pa.RecordBatch.from_arrays([*merged.columns, times], schema=schema)
