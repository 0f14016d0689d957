"""Fetcher: read a partition from an offset on, and wait for more.

    locate ─▶ reserve budget ─▶ read pages ─▶ chunks ─▶ … end of the log ─▶ wait once ─▶ again

One loop serves all kinds of reading: a fetch is bounded by messages and a deadline, a follow by a
deadline alone, a scan by an end offset and never waits.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core import tracing
from wings_core.errors import OffsetOutOfRange, SchemaMismatch, StorageCorrupt, WingsError
from wings_core.fetch.chunks import Chunk, ChunkReader, placed
from wings_core.fetch.engines import Allowance, FilterTimedOut
from wings_core.fetch.selection import Selection
from wings_core.fetch.shared import SHARED_BYTES_MAX, SharedReads, copied
from wings_core.fetch.state import FetchState
from wings_core.fetch.waits import Waits
from wings_core.latest import Latest
from wings_core.limits import Limits
from wings_core.metadata.interfaces import POSITIONS_MAX, OffsetRegistry
from wings_core.metadata.wake import Wake
from wings_core.model import Located, Location, Position, Topic
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore
from wings_core.times import Deadline

LOCATE_ROWS_MAX = 1 << 20
"""Rows that are looked up in metadata at a time; by a scan at first, then twice as many each time:
one that goes on looks for a thousand large pages at once, as for small ones."""

READ_AHEAD_SECONDS = 0.001
"""A scan reads ahead for about so long at a time, and then delivers what it has: sending a chunk
clears the processor's caches, and code that runs once for many chunks finds them filled."""

READ_AHEAD_BYTES = 64 * 1024 * 1024
"""Nor does it read much more than this ahead, in stored bytes: only of mapped pages that were read
before, which take no memory, so many are read in that time."""

MOVES_MAX = 8
"""How often one page is looked for again, where it is not where it was: maintenance moves a page
once, and what it moved again much later."""

UNLIMITED = 1 << 62
"""The budget of a follow: more messages than a partition can hold."""


@dataclass(slots=True, weakref_slot=True)
class Cancel:
    """Ends a read from another thread: its client disconnected, or the server stops."""

    wake: Wake = field(default_factory=Wake)
    """Ends a wait; also set by commits and by a state that has enough."""
    error: WingsError | None = None
    """Set once; the reader raises it at its next step."""

    def cancel(self, error: WingsError) -> None:
        """End the read with this error, at once where it waits."""
        self.error = error
        self.wake.set()

    def check(self) -> None:
        """Raise the error that the read was cancelled with, if it was."""
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class Cursor:
    """One partition being read; `offset` is where to read on."""

    topic: Topic
    partition: Partition
    offset: int
    selection: Selection
    log_end_offset: int = 0
    """As of the last look at the log."""
    at_end: bool = False
    """Whether, by the last look, all is delivered that was committed when the request came."""
    has_rows: bool = True
    """Whether it counts among the partitions of its state that still have rows."""
    filtered_rows: int = 0
    """How many rows its filter has looked at."""
    cancel: Cancel | None = None
    """What ends its read; its filter too, while that is at work."""
    told: int | None = None
    """`OffsetRegistry.told` as of the last look."""
    clamps: bool = False
    """Whether what retention takes before it is read is skipped, as of reads from `"earliest"`;
    else that is an error."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """What followers at one place are delivered: all that was committed there."""

    chunks: Sequence[Chunk]
    next_offset: int
    looked_at: int
    """How many rows, those dropped by a filter included."""
    told: int | None
    """`OffsetRegistry.told` as of the look."""


class Fetcher:
    """Reads partitions; all methods may be called from any thread.

    Args:
        store: Where pages lie.
        registry: Where they are found.
        limits: Bounds on the wire and on waiting readers.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.
        latest: What was committed here last, for followers; None: it is not known.

    Attributes:
        waits: Counts and bounds the readers that wait, here or by `OffsetRegistry.watch`.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        versions: SchemaVersions | None = None,
        latest: Latest | None = None,
    ) -> None:
        self._latest = latest
        self._chunks = ChunkReader(store, limits, versions)
        self._versions = versions
        self._store = store
        self._registry = registry
        self._tails: SharedReads[_Tail] = SharedReads()
        self.waits = Waits(limits.calls_waiting_max)

    def fetch(
        self,
        topic: Topic,
        partition: Partition,
        offset: int,
        state: FetchState,
        cancel: Cancel,
        selection: Selection | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Yield `(batch, start_offset, end_offset)` from `offset` on; see `read`."""
        cursor = Cursor(topic, partition, offset, selection or Selection.of(topic))
        for chunk in self.read(cursor, state, cancel):
            yield chunk.batch, chunk.start_offset, chunk.end_offset

    def read(self, cursor: Cursor, state: FetchState, cancel: Cancel) -> Iterator[Chunk]:
        """Yield chunks from the cursor on, until the request has enough or its deadline passes.

        What is committed is delivered, up to `state.max_messages`. At the end of the log, where the
        whole request has fewer than `state.min_messages`, blocks until more is committed, another
        partition of the request brings enough, `cancel` is set, or the deadline passes. A
        deadline in the past still delivers what is committed. Nothing is delivered twice.

        The cursor moves with the rows; empty chunks (a filter dropped a whole range) are not
        yielded. With a filter, reading stops after the deadline once a range was looked at.

        Raises:
            OffsetOutOfRange: The cursor is below the log's start.
            TopicNotFound: The topic was deleted, also during the wait.
            StorageCorrupt: A page is damaged; the rows before it were delivered.
            InvalidFilter: The filter fails on the data.
            ResourceExhausted: Too many readers wait already.
            WingsError: What `cancel` was set with.
        """
        state.wake_when_enough(cancel.wake)
        cursor.cancel = cancel
        while True:
            # Cleared before the look, so that a commit after the look is not missed.
            cancel.wake.clear()
            cancel.check()
            for chunk in self.take(cursor, state):
                if chunk.batch.num_rows:
                    yield chunk
                cancel.check()
            if state.full or state.enough or state.deadline.passed:
                return
            self._wait(cursor, state.deadline, cancel.wake)

    def take(self, cursor: Cursor, state: FetchState) -> Iterator[Chunk]:
        """Yield what is committed now, within the budget of `state`; never waits for commits.

        Chunks may be empty, where a filter dropped their whole range. Raises as `read`.
        """
        if state.max_messages >= UNLIMITED:
            yield from self._take_tail(cursor, state)
            if cursor.at_end:
                return
        while not state.full:
            before = cursor.offset
            yield from self.take_slice(cursor, state)
            if cursor.at_end or cursor.offset == before:
                return
            if _filtered(cursor) and state.deadline.passed:
                return

    def _take_tail(self, cursor: Cursor, state: FetchState) -> Iterator[Chunk]:
        """Yield what followers at the cursor share: all that is committed, where that is little."""
        if self._latest is not None and cursor.selection.is_plain and not tracing.is_on():
            latest = self._latest.rows(cursor.topic, cursor.partition, cursor.offset)
            if latest is not None:
                last = latest.next_offset - 1
                rows = latest.rows(cursor.topic)
                yield Chunk(rows, latest.start_offset, last, latest.page_bytes)
                _move_to_end(cursor, latest.next_offset, latest.told)
                return
        key = (cursor.topic.uuid, cursor.partition, cursor.offset, cursor.selection.wish)
        cursor.at_end = False
        tail = self._tails.get(key, lambda: self._read_tail(cursor, state))
        if tail is None:
            return
        for chunk in tail.chunks:
            cursor.offset = chunk.end_offset + 1
            yield chunk
        if _filtered(cursor):
            cursor.filtered_rows += tail.looked_at
        _move_to_end(cursor, tail.next_offset, tail.told)

    def _read_tail(self, cursor: Cursor, state: FetchState) -> _Tail | None:
        """Read all that is committed from the cursor on; None where that is nothing, or much."""
        told = self._registry.told
        start_offset = cursor.offset
        located = self.locate(cursor, LOCATE_ROWS_MAX, state.arrived_at)
        locations = located.locations
        if not locations or sum([each.bytes for each in locations]) > SHARED_BYTES_MAX:
            return None
        if cursor.offset > start_offset:
            return None  # It was moved on: it begins elsewhere than those that it would share with.
        stop_offset = locations[-1].end_offset + 1
        if stop_offset < located.log_end_offset:
            return None
        try:
            chunks = list(self._read(cursor, locations, stop_offset, UNLIMITED, state.deadline))
        except (FilterTimedOut, StorageCorrupt, SchemaMismatch):
            return None  # Read alone, a cursor is delivered what comes before.
        if not chunks or chunks[-1].end_offset < stop_offset - 1:
            return None  # Retention has passed some of it.
        batches = copied([chunk.batch for chunk in chunks])
        shared = [Chunk(batch, *chunk[1:]) for chunk, batch in zip(chunks, batches, strict=True)]
        return _Tail(shared, stop_offset, stop_offset - cursor.offset, told)

    def take_slice(
        self, cursor: Cursor, state: FetchState, located: Located | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of one reservation from the budget: none at the end, or where full.

        A caller that reads several partitions in turn exhausts one slice before it begins the next.

        Args:
            cursor: Where to begin.
            state: The budget.
            located: What was found there just now; None: it is looked up.
        """
        # A filter that passed few rows so far looks at ever more of them at a time: one that took
        # as many as are still wanted would be called for each small page.
        wanted = max(1, state.max_messages - state.delivered) + cursor.filtered_rows
        cursor.told = None
        if located is None:
            cursor.told = self._registry.told
            located = self.locate(cursor, min(LOCATE_ROWS_MAX, wanted), state.arrived_at)
        cursor.log_end_offset = located.log_end_offset
        cursor.at_end = False
        self.count_rows(cursor, state, bool(located.locations))
        if not located.locations:
            return
        stop_offset = located.locations[-1].end_offset + 1
        reserved = state.reserve(stop_offset - cursor.offset)
        if reserved == 0:
            return
        try:
            chunks = self._read(cursor, located.locations, stop_offset, reserved, state.deadline)
            for chunk in chunks:
                rows = chunk.batch.num_rows
                if _filtered(cursor):
                    cursor.filtered_rows += chunk.end_offset + 1 - cursor.offset
                cursor.offset = chunk.end_offset + 1
                state.release(rows, rows)
                reserved -= rows
                yield chunk
                if _filtered(cursor) and state.deadline.passed:
                    return
        except FilterTimedOut:
            # A read that has looked at some rows goes on where it stands; one that has not would
            # stand there for ever.
            if not (cursor.filtered_rows and state.deadline.passed):
                raise
        finally:
            state.release(reserved, 0)
        # Saves a second look that finds nothing: many readers are woken at one tail.
        seen_at = state.arrived_at if located.asked_at is None else located.asked_at
        if cursor.offset >= located.log_end_offset and seen_at >= state.arrived_at:
            cursor.at_end = True
            self.count_rows(cursor, state, False)

    def scan(self, cursor: Cursor, end_offset: int, cancel: Cancel) -> Iterator[list[Chunk]]:
        """Yield the rows from the cursor to `end_offset`, exclusive, a few chunks at a time.

        Never waits. The cursor moves with the rows; empty chunks are left out.

        Args:
            cursor: Where to begin.
            end_offset: Where to end, at the latest at the log's end.
            cancel: Ends the scan.

        Raises: as `read`.
        """
        cursor.cancel = cancel
        rows_max = LOCATE_ROWS_MAX
        while cursor.offset < end_offset:
            cancel.check()
            located = self.locate(cursor, min(rows_max, end_offset - cursor.offset))
            rows_max *= 2
            cursor.log_end_offset = located.log_end_offset
            end_offset = min(end_offset, located.log_end_offset)
            if cursor.offset >= end_offset:
                return  # Retention has passed all of it, or there is no more.
            assert located.locations, "the log has rows before its end"
            stop_offset = min(end_offset, located.locations[-1].end_offset + 1)
            chunks = self._read(cursor, located.locations, stop_offset, UNLIMITED, Deadline.never())
            for ahead in read_ahead(chunks):
                cursor.offset = ahead[-1].end_offset + 1
                yield [chunk for chunk in ahead if chunk.batch.num_rows]
                cancel.check()

    def locate(self, cursor: Cursor, rows_max: int, since: float | None = None) -> Located:
        """Return what lies at a cursor, which first moves to the log's start if it clamps.

        Args:
            cursor: Where to look.
            rows_max: The `messages_max` of `OffsetRegistry.locate`.
            since: As there.

        Raises:
            OffsetOutOfRange: The cursor is below the log's start.
            TopicNotFound: The topic was deleted.
        """
        while True:
            try:
                with tracing.span("metadata.locate"):
                    located = self._registry.locate(
                        cursor.topic.uuid, cursor.partition, cursor.offset, rows_max, since
                    )
            except OffsetOutOfRange as error:
                if not cursor.clamps or error.log_start_offset <= cursor.offset:
                    raise
                cursor.offset = error.log_start_offset
            else:
                return located

    def offset_for_timestamp(self, topic: Topic, partition: Partition, timestamp: int) -> int:
        """Return what `offsets_for_timestamps` finds of one partition."""
        return self.offsets_for_timestamps(topic, [(partition, timestamp)])[partition]

    def offsets_for_timestamps(
        self, topic: Topic, positions: Sequence[tuple[Partition, int]]
    ) -> dict[Partition, int]:
        """Return the offsets of the first messages at or after times, else the next offsets.

        Two looks at metadata for as many as `POSITIONS_MAX` partitions, and a read of each merged
        page whose rows are some before and some after the time.

        Args:
            topic: The topic.
            positions: Partitions, each once and not necessarily written to yet, and a time of each,
                in microseconds since the epoch.

        Raises:
            TopicNotFound: The topic was deleted.
            StorageCorrupt: A page that tells is damaged.
        """
        found: dict[Partition, int] = {}
        left, moves = list(positions), 0
        while left:
            try:
                for partition, offset in self._offsets_at(topic, left[:POSITIONS_MAX]):
                    found[partition] = offset
                    moves = 0
            except StorageCorrupt:
                moves += 1  # By retention, or to another place.
                if moves > MOVES_MAX:
                    raise
            left = [position for position in left if position[0] not in found]
        return found

    def _offsets_at(
        self, topic: Topic, positions: Sequence[tuple[Partition, int]]
    ) -> Iterator[tuple[Partition, int]]:
        """Yield partitions with the offset of a time; not those that changed during the look."""
        offsets = self._registry.offsets_for_timestamps(topic.uuid, positions)
        begins = [
            (partition, offset) for (partition, _), offset in zip(positions, offsets, strict=True)
        ]
        located = self._registry.locate_many(topic.uuid, begins, 1)
        within: list[tuple[Partition, int, Location]] = []
        for (partition, timestamp), offset, (state, locations) in zip(
            positions, offsets, located, strict=False
        ):
            if locations and locations[0].earliest_timestamp < timestamp <= locations[0].timestamp:
                within.append((partition, timestamp, locations[0]))
            elif offset >= state.log_start_offset:
                yield partition, offset
        pages = [location for _, _, location in within]
        if self._versions is not None:
            topic = self._versions.covering(topic, pages)
        read = read_pages(self._store, topic, pages, Wanted((), timestamps=True))
        for (partition, timestamp, location), page in zip(within, read, strict=True):
            times = cast("pa.Array[Any]", page.timestamps)
            late = pc.greater_equal(times, pa.scalar(timestamp, times.type))
            row = int(pc.index(late, pa.scalar(True)).as_py())
            yield partition, location.start_offset + row

    def _read(
        self,
        cursor: Cursor,
        locations: Sequence[Location],
        stop_offset: int,
        rows_max: int,
        deadline: Deadline,
    ) -> Iterator[Chunk]:
        """Yield the chunks of what was located; see `ChunkReader.read`.

        Pages that maintenance put somewhere else meanwhile are looked for again. Ends early where
        retention has taken them and the cursor clamps: the next look moves it on.
        """
        try:
            yield from self._read_located(cursor, locations, stop_offset, rows_max, deadline)
        except OffsetOutOfRange:
            if not cursor.clamps:
                raise

    def _read_located(
        self,
        cursor: Cursor,
        locations: Sequence[Location],
        stop_offset: int,
        rows_max: int,
        deadline: Deadline,
    ) -> Iterator[Chunk]:
        offset, moves = cursor.offset, 0
        mismatch: WingsError | None = None
        allowance = Allowance(deadline, cursor.cancel) if _filtered(cursor) else None
        while True:
            try:
                for chunk in self._chunks.read(
                    cursor.topic,
                    locations,
                    offset,
                    stop_offset,
                    rows_max,
                    cursor.selection,
                    allowance,
                ):
                    offset, moves = chunk.end_offset + 1, 0
                    rows_max -= chunk.batch.num_rows
                    yield chunk
            except SchemaMismatch as error:
                # The rows before it in its page fit.
                bad: int = error.facts["offset"]
                mismatch = placed(error, cursor.partition, bad)
                if not offset < bad < stop_offset:
                    raise mismatch from None
                stop_offset = bad
                locations = self._locate(cursor, offset, stop_offset)
            except StorageCorrupt:
                # Nothing is damaged where the topic was deleted meanwhile or retention has passed,
                # which the look says; nor where the page is somewhere else by now.
                moves += 1
                found = self._locate(cursor, offset, stop_offset)
                if moves > MOVES_MAX or not _is_elsewhere(offset, locations, found):
                    raise
                locations = found
            else:
                if mismatch is not None and offset >= stop_offset and rows_max > 0:
                    raise mismatch
                if offset >= stop_offset or rows_max <= 0:
                    return
                # Pages that were looked for again are fewer than those that were known.
                locations = self._locate(cursor, offset, stop_offset)

    def _locate(self, cursor: Cursor, offset: int, stop_offset: int) -> Sequence[Location]:
        topic, partition = cursor.topic.uuid, cursor.partition
        return self._registry.locate(topic, partition, offset, stop_offset - offset).locations

    def count_rows(self, cursor: Cursor, state: FetchState, has_rows: bool) -> None:
        """Count a partition among those of a request that still have rows, or no more."""
        if has_rows and not cursor.has_rows:
            state.join_rows()
        elif cursor.has_rows and not has_rows:
            state.leave_rows()
        cursor.has_rows = has_rows

    def _wait(self, cursor: Cursor, deadline: Deadline, wake: Wake) -> None:
        with self.waits.one():
            position = Position(cursor.topic.uuid, cursor.partition, cursor.offset)
            self._registry.wait([position], deadline, wake, cursor.told)


def _move_to_end(cursor: Cursor, next_offset: int, told: int | None) -> None:
    """Say that all is delivered that is before an offset; there may be more: the wait finds out."""
    cursor.offset = next_offset
    cursor.log_end_offset = max(cursor.log_end_offset, next_offset)
    cursor.at_end, cursor.told = True, told


def read_ahead(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Yield chunks, some at a time and at least one; all that were read come before an error."""
    ahead: list[Chunk] = []
    ahead_bytes = 0
    ends_at = time.monotonic() + READ_AHEAD_SECONDS
    try:
        for chunk in chunks:
            ahead.append(chunk)
            ahead_bytes += chunk.bytes
            if ahead_bytes >= READ_AHEAD_BYTES or time.monotonic() >= ends_at:
                yield ahead
                ahead, ahead_bytes = [], 0
                ends_at = time.monotonic() + READ_AHEAD_SECONDS
    except WingsError:
        if ahead:
            yield ahead
        raise
    if ahead:
        yield ahead


def _is_elsewhere(offset: int, known: Sequence[Location], found: Sequence[Location]) -> bool:
    """Tell whether the page of an offset was found at another place than it was known at."""
    places = [
        [each.address for each in some if each.end_offset >= offset] for some in (known, found)
    ]
    return bool(places[1]) and places[0][:1] != places[1][:1]


def _filtered(cursor: Cursor) -> bool:
    return cursor.selection.row_filter is not None
