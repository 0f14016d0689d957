"""RecordFetcher: the rows of a range of offsets, as many as can be had, wherever they lie.

Dead letters take their payloads from it, deliveries their rows, and groups with a column of times
the times at which messages are to be delivered. The store behind the log hides in which tier a page
lies; a page of the remote one may take long, so `begin` reads on threads of its own.

Workers that take a few messages at a time take neighbours, one after the other. Rows of a log never
change, so what was read beside others is delivered without a look at the log or its pages.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import BoundedSemaphore
from typing import Any, Protocol, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import (
    InvalidArgument,
    NotFound,
    OffsetOutOfRange,
    ResourceExhausted,
    SchemaMismatch,
    Unavailable,
    WingsError,
    suggested,
)
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Fetcher, Read
from wings_core.fetch.selection import OFFSET_FIELD, Selection, timestamp_column
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PageFormat, Topic
from wings_core.partitions import Partition
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.lru import BySchema, Lru

THREADS = 4
"""Fetches that run at once; further ones wait for their turn."""

FETCHES_MAX = 256
"""Fetches that run or wait at once; further ones are refused."""

STEPS_MAX = 1_000_000
"""Reads of one fetch: more than a range of offsets can have batches."""

NEAR_ROWS_MAX = 32
"""Rows that are read at once where others wait for it; each may be a page of its own."""

SELECTIONS_MAX = 1_000
"""Selections of schemas that are kept."""

AHEAD_ROWS = 1_000
"""How many rows are read where the ones before them were read just now."""

CACHED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are kept; those unused for longest go first."""

CHUNK_BYTES_MAX = 1024 * 1024
"""Larger chunks are not kept: they hold enough for a request of their own."""

_TICKS_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_INT64_MAX = (1 << 63) - 1


_logger = logging.getLogger(__name__)


class RecordSource(Protocol):
    """Where rows are read from, some at a time."""

    def read(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> Sequence[pa.RecordBatch]:
        """Return some of the rows from an offset on; none where there are none.

        They may begin before the offset, as those do that lie together, and go on behind
        `stop_offset`.

        Returns:
            The topic's columns, `__offset` and `__timestamp`, in order of offset.

        Raises:
            OffsetOutOfRange: The offset is gone; fact `log_start_offset` is the first that is not.
            WingsError: They cannot be read.
        """
        ...

    def near(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> Sequence[pa.RecordBatch]:
        """Return what `read` does where that takes no longer than a look at metadata; else none.

        Raises:
            WingsError: They cannot be read.
        """
        del topic, partition, offset, stop_offset
        return ()

    def last_beside(self, topic: Topic, partition: Partition, offset: int) -> int:
        """Return the last offset of those that are stored with a row: a damaged page ends there.

        Raises:
            WingsError: It is not known.
        """
        del topic, partition
        return offset


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Rows `[first, last]` that are damaged; reading them again is in vain."""

    first: int
    last: int
    error: WingsError


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """The rows found in a range of offsets."""

    batches: tuple[pa.RecordBatch, ...]
    """The topic's columns, `__offset` and `__timestamp`, in order of offset, each offset once."""
    error: WingsError | None
    """Error that ended the fetch early, and may pass; None where it ended with the range, with the
    log, or at offsets that are gone."""
    unreadable: tuple[Unreadable, ...] = ()
    """Skipped ranges, in order; its neighbours are in `batches`."""


class RecordFetcher:
    """Collects the rows of ranges of offsets; all methods may be called from any thread.

    Args:
        source: Where they are.
    """

    def __init__(self, source: RecordSource) -> None:
        self._source = source
        self._threads = ThreadPoolExecutor(THREADS, "wings-records")
        self._room = BoundedSemaphore(FETCHES_MAX)
        self._ahead = ChunksReadAhead()

    def begin(
        self, topic: Topic, partition: Partition, first: int, last: int
    ) -> Future[FetchedRecords]:
        """Begin to collect the rows `[first, last]`; returns at once.

        The future is cancelled where the fetcher is closed before its turn; see `rows_of`.

        Raises:
            ResourceExhausted: Too many fetches run and wait already.
            Unavailable: The fetcher is closed.
        """
        if not self._room.acquire(blocking=False):
            raise ResourceExhausted(f"{FETCHES_MAX} fetches of records run and wait already")
        try:
            future = self._threads.submit(self.collect, topic, partition, first, last)
        except RuntimeError as error:  # So the threads say that they were told to end.
            self._room.release()
            raise _closed() from error
        future.add_done_callback(lambda _: self._room.release())
        return future

    def kept(
        self, topic: Topic, partition: Partition, first: int, last: int, *, near: bool = False
    ) -> pa.RecordBatch | None:
        """Return the rows `[first, last]` if all of them were read beside others before.

        Or, with `near`, if they can be read about as fast.
        """
        key = _key(topic)
        rows = self._ahead.rows(key, partition, first, last)
        if rows is not None or not near or last - first >= NEAR_ROWS_MAX:
            return rows
        try:
            stop = self._ahead.stop_offset(key, partition, first, last + 1)
            stop = min(stop, first + NEAR_ROWS_MAX)
            found = self._source.near(topic, partition, first, stop)
        except WingsError:
            return None  # Who collects them meets it again.
        if not found:
            return None
        self._ahead.keep(key, partition, found[-1])
        return self._ahead.rows(key, partition, first, last)

    def collect(self, topic: Topic, partition: Partition, first: int, last: int) -> FetchedRecords:
        """Collect the rows `[first, last]`, both inclusive; blocks for the reads.

        Ends at the end of the log, and with what it has at an error that may pass, at a read
        without rows and at one that does not go on. An offset that is gone is absent, a damaged
        page is skipped. Nothing is raised.
        """
        key = _key(topic)
        kept = self._ahead.rows(key, partition, first, last)
        if kept is not None:
            return FetchedRecords((kept,), None)
        batches: list[pa.RecordBatch] = []
        unreadable: list[Unreadable] = []
        cursor = first
        for _ in range(STEPS_MAX):
            if cursor > last:
                break
            try:
                stop = self._ahead.stop_offset(key, partition, cursor, last + 1)
                found = self._source.read(topic, partition, cursor, stop)
            except OffsetOutOfRange as error:
                # Those below are gone, the others may be there.
                log_start_offset = error.facts.get("log_start_offset", 0)
                if log_start_offset <= cursor:
                    return FetchedRecords(tuple(batches), error, tuple(unreadable))
                cursor = log_start_offset
                continue
            except (Unavailable, ResourceExhausted, NotFound, SchemaMismatch) as error:
                # The last: the reader has an earlier version of the schema, another one reads them.
                _logger.warning("%s is not read from %d on: %s", topic.name, cursor, error)
                return FetchedRecords(tuple(batches), error, tuple(unreadable))
            except WingsError as error:
                _logger.warning("%s cannot be read at %d: %s", topic.name, cursor, error)
                skipped = Unreadable(cursor, self._last_beside(topic, partition, cursor), error)
                unreadable.append(replace(skipped, last=min(last, skipped.last)))
                cursor = skipped.last + 1
                continue
            if found:
                self._ahead.keep(key, partition, found[-1])
            wanted = _wanted(found, cursor, last)
            if not wanted:
                break
            batches += wanted
            cursor = _offsets(wanted[-1])[-1].as_py() + 1
        return FetchedRecords(tuple(batches), None, tuple(unreadable))

    def _last_beside(self, topic: Topic, partition: Partition, offset: int) -> int:
        try:
            return max(offset, self._source.last_beside(topic, partition, offset))
        except WingsError:
            return offset  # Each row is tried by itself then.

    def close(self) -> None:
        """End the threads, after the fetches that run; those that wait are cancelled."""
        self._threads.shutdown(cancel_futures=True)


def rows_of(fetch: Future[FetchedRecords]) -> FetchedRecords:
    """Return what a fetch that was begun has found; blocks for it. Nothing is raised."""
    try:
        return fetch.result()
    except CancelledError:
        return FetchedRecords((), _closed())


class LogSource(RecordSource):
    """Reads a log, whatever tier a page lies in.

    Args:
        fetcher: Reads it.
        registry: Knows where it ends.
        columns: Read, of the topic's; None: all.
        store: Where pages lie; None: no rows are near.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        registry: OffsetRegistry,
        columns: Sequence[str] | None = None,
        store: FolioStore | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._store = store
        wanted = ReadOptions(
            columns=None if columns is None else tuple(columns), system_columns=True
        )
        self._selections: BySchema[Selection] = BySchema(
            lambda topic: Selection.of(topic, wanted), SELECTIONS_MAX
        )

    def read(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> list[pa.RecordBatch]:
        """Return some of the rows from an offset on; see `RecordSource.read`."""
        cursor = PartitionCursor(partition, offset, stop_offset)
        read = Read.of(topic, [cursor], self._selections.get(topic))
        chunk = next(self._fetcher.scan(read, Cancel()), None)
        return [] if chunk is None else [chunk.batch]

    def near(
        self, topic: Topic, partition: Partition, offset: int, stop_offset: int
    ) -> list[pa.RecordBatch]:
        """Return what metadata keeps itself, as of small pushes; see `RecordSource.near`."""
        if self._store is None:
            return []
        selection = self._selections.get(topic)
        rows = stop_offset - offset
        pages = self._registry.locate(topic.uuid, partition, offset, rows).locations
        form = (PageFormat.INLINE, topic.schema_version)
        for page in pages:
            if (page.format, page.schema_version) != form:
                return []
        wanted = Wanted(selection.stored_columns, offset, stop_offset, timestamps=True)
        batches: list[pa.RecordBatch] = []
        for stored, timestamp, _ in read_pages(self._store, topic, pages, wanted):
            count = stored.num_rows
            offsets = cast("Any", pa).arange(offset, offset + count)
            times = timestamp_column([(timestamp, count)])
            batches.append(selection.deliver(stored, [offsets, times]))
            offset += count
        if len(batches) < 2:
            return batches
        return [cast("Any", pa).concat_batches(batches)]  # The stubs do not know it.

    def last_beside(self, topic: Topic, partition: Partition, offset: int) -> int:
        """Return the last offset of the page that holds a row; see `RecordSource.last_beside`."""
        located = self._registry.locate(topic.uuid, partition, offset, 1)
        return located.locations[0].end_offset if located.locations else offset


def check_column(topic: Topic, column: str) -> None:
    """Refuse a column that has no times.

    Raises:
        InvalidArgument: The topic has no such column, or it is no timestamp.
    """
    index = topic.schema.get_field_index(column)
    if index < 0:
        hint = suggested(column, topic.schema.names)
        raise InvalidArgument(
            f"config.deliver_at_column: topic {topic.name} has no column {column!r:.80}{hint}"
        )
    kind = topic.schema.field(index).type
    if not pa.types.is_timestamp(kind):
        raise InvalidArgument(
            f"config.deliver_at_column: column {column!r:.80} is {kind}, and no timestamp"
        )


@dataclass(frozen=True, slots=True, eq=False)
class LogTimes:
    """Reads the times of messages from a log; from any thread.

    Args:
        fetcher: Reads it.
        registry: Knows where it ends.
    """

    _fetcher: Fetcher
    _registry: OffsetRegistry

    def __call__(
        self, topic: Topic, partition: Partition, column: str, first: int, last: int
    ) -> pa.Int64Array:
        """Return the times of `[first, last]`, one each, in microseconds since the epoch.

        Null where the value is, where the row is gone or damaged, and for all of a topic without
        the column: what cannot be known must not be held back for ever. Blocks for the reads.

        Raises:
            WingsError: They cannot be read for now.
        """
        if topic.schema.get_field_index(column) < 0:
            return pa.nulls(last - first + 1, pa.int64())
        records = RecordFetcher(LogSource(self._fetcher, self._registry, [column]))
        found = records.collect(topic, partition, first, last)  # On this thread alone.
        if found.error is not None:
            raise found.error
        pieces: list[pa.Array[Any]] = []
        at = first
        for batch in found.batches:
            offsets = cast("pa.Int64Array", batch.column("__offset"))
            begin, end = offsets[0].as_py(), offsets[-1].as_py()
            if end - begin + 1 != len(offsets):
                raise AssertionError("rows of a log have no gaps")
            pieces += [pa.nulls(begin - at, pa.int64()), microseconds(batch.column(column))]
            at = end + 1
        pieces.append(pa.nulls(last + 1 - at, pa.int64()))
        return cast("pa.Int64Array", pa.concat_arrays(pieces))


def microseconds(times: "pa.Array[Any]") -> pa.Int64Array:
    """Return timestamps as microseconds since the epoch, rounded up; those without a zone are UTC.

    Beyond what 64 bits hold it is the last moment that they do.
    """
    unit = str(times.type.unit)
    ticks = times.cast(pa.int64())
    if unit == "ns":
        down = pc.divide(ticks, 1_000)  # Rounds towards zero.
        above = pc.greater(pc.subtract(ticks, pc.multiply(down, 1_000)), 0)
        return pc.add(down, above.cast(pa.int64()))
    each = _TICKS_US[unit]
    most = _INT64_MAX // each
    bounded = pc.max_element_wise(
        pc.min_element_wise(ticks, most, skip_nulls=False), -most, skip_nulls=False
    )
    return pc.multiply(bounded, each)


class ChunksReadAhead:
    """The last chunk read of each of some partitions; all methods from any thread.

    A topic is named by its UUID and the version of its schema.
    """

    def __init__(self) -> None:
        self._chunks: Lru[tuple[str, Partition], tuple[int, pa.RecordBatch]]
        self._chunks = Lru(CACHED_BYTES_MAX)
        """First offset and rows of each."""

    def rows(
        self, topic: str, partition: Partition, first: int, last: int
    ) -> pa.RecordBatch | None:
        """Return the rows `[first, last]`, if all of them are kept."""
        found = self._chunks.get((topic, partition))
        if found is None or first < found[0] or last >= found[0] + found[1].num_rows:
            return None
        return found[1].slice(first - found[0], last - first + 1)

    def stop_offset(self, topic: str, partition: Partition, first: int, stop: int) -> int:
        """Return up to where to read for `[first, stop)`: further, where it goes on from before."""
        found = self._chunks.get((topic, partition))
        if found is None or not found[0] < first <= found[0] + found[1].num_rows:
            return stop
        return max(stop, first + AHEAD_ROWS)

    def keep(self, topic: str, partition: Partition, chunk: pa.RecordBatch) -> None:
        """Keep a chunk with the column `__offset`, in place of the one before."""
        size, offsets = chunk.nbytes, chunk.column(OFFSET_FIELD.name)
        if not chunk.num_rows or size > CHUNK_BYTES_MAX:
            return
        start: int = offsets[0].as_py()
        if offsets[-1].as_py() != start + chunk.num_rows - 1:
            return  # Some are missing.
        self._chunks.put((topic, partition), (start, chunk), size)


def _key(topic: Topic) -> str:
    """Return what rows are kept by: those of another version of the schema have other columns."""
    return f"{topic.uuid} {topic.schema_version}"


def _closed() -> Unavailable:
    return Unavailable("records are fetched no more: the log is being closed")


def _offsets(batch: pa.RecordBatch) -> pa.Int64Array:
    column = batch.column(OFFSET_FIELD.name)
    assert isinstance(column, pa.Int64Array)
    return column


def _wanted(found: Sequence[pa.RecordBatch], first: int, last: int) -> list[pa.RecordBatch]:
    """Return the rows `[first, last]` of batches, each once."""
    wanted: list[pa.RecordBatch] = []
    for batch in found:
        rows = _within(batch, first, last)
        if rows.num_rows:
            wanted.append(rows)
            first = _offsets(rows)[-1].as_py() + 1
    return wanted


def _within(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Return the rows of a batch whose offsets are in `[first, last]`, without a copy where all."""
    offsets = _offsets(batch)
    if not len(offsets) or (offsets[0].as_py() >= first and offsets[-1].as_py() <= last):
        return batch
    if offsets[-1].as_py() - offsets[0].as_py() == len(offsets) - 1:
        skipped = max(0, first - offsets[0].as_py())
        return batch.slice(skipped, max(0, last - offsets[0].as_py() + 1 - skipped))
    wanted = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
    return batch.filter(wanted)
