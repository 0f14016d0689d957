"""Fetcher: read the partitions of a topic, one or thousands, and wait for more.

    whose turn ─▶ locate ─▶ plan ─▶ reserve budget ─▶ pages ─▶ chunks ─▶ … end of the log ─▶ wait
    ▲                                                              │                          │
    └──────────────────── partitions that have more: to the back ◀─┴───── commits that are heard

One loop serves all kinds of reading: a fetch is bounded by messages and a deadline, a follow by a
deadline alone, a scan by an end in each partition, and never waits. `take` alone never waits: with
`watch`, which calls back, it serves readers that hold no thread.
"""

import math
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from wings_core import tracing
from wings_core.errors import OffsetOutOfRange, SchemaMismatch, Unavailable, WingsError
from wings_core.fetch.begins import TimeOffsets
from wings_core.fetch.chunks import ChunkReader, FetchedChunk, PageFailed
from wings_core.fetch.cursors import (
    MOVES_MAX,
    UNKNOWN,
    Chosen,
    PartitionCursor,
    Rotation,
    below_start,
)
from wings_core.fetch.engines import Allowance, FilterTimedOut
from wings_core.fetch.kept import (
    SHARED_BYTES_MAX,
    KeptLookups,
    Lookup,
    Pages,
    Positions,
    SharedReads,
    copied,
)
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState, Waits
from wings_core.limits import Limits
from wings_core.metadata.deadlines import calls_until, each_until
from wings_core.metadata.interfaces import LOCATIONS_MAX, POSITIONS_MAX, OffsetRegistry
from wings_core.metadata.waiting import GatheredChanges, Wake
from wings_core.model import LocatedPartition, PartitionState, Position, Topic
from wings_core.partitions import Partition, partition_value
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.interfaces import FolioStore
from wings_core.times import Deadline

TURN_ROWS_MAX = 1 << 20
"""Rows of all partitions of a turn, looked up in metadata at a time."""

TURN_ROWS_MIN = 8_192
"""The least rows of a partition in one turn of a scan or follow, as far as they are there."""

FEW_PARTITIONS = 64
"""Partitions of a turn whose pages are located one by one; more as columns. Also the most of a turn
that followers share."""

UNLIMITED = 1 << 62
"""The budget of a follow: more messages than a log can hold."""


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
class Read:
    """A read of partitions of a topic, under way; for one thread at a time."""

    topic: Topic
    selection: Selection
    chosen: Chosen
    """All partitions that it is of."""
    rotation: Rotation
    """Where those that are read stand."""
    hears_topic: bool = False
    """True: while it waits, it is told of the commits to each partition of the topic; False: it is
    woken at its cursors, and looks."""
    failures: dict[Partition, WingsError] | None = None
    """Gathers the errors of single partitions, of which no more is read; None: the first ends the
    read."""
    since: float = field(default_factory=time.monotonic)
    """When it last heard of a commit, or began, by the monotonic clock: a look that began later saw
    all there was."""
    changes: GatheredChanges | None = None
    """Commits since the last look, while it waits or may wait; None before."""
    filtered_rows: int = 0
    """How many rows its filter has looked at."""
    allowance: Allowance | None = None
    """How long the filter may take for a chunk."""
    is_cut: bool = False
    """Whether a partition ended before its stop, as metadata that cannot be asked is remembered."""
    counted: int = 1
    """How many of its partitions its budget counts among those with rows."""

    @classmethod
    def of(
        cls,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        selection: Selection | None = None,
    ) -> "Read":
        """Return a read of named partitions, each from its cursor's offset up to its stop."""
        chosen = Chosen([cursor.partition for cursor in cursors])
        return cls(topic, selection or Selection.of(topic), chosen, Rotation(cursors))

    def note(self) -> None:
        """Note that something was committed; from any thread."""
        self.since = time.monotonic()


@dataclass(frozen=True, slots=True)
class _SharedTurn:
    """All that was committed behind some cursors."""

    chunks: Sequence[FetchedChunk]
    ends: Sequence[int]
    """For each cursor the offset where it stands after it."""
    looked_at: float
    """When the look at metadata began."""


class Fetcher(TimeOffsets):
    """Reads partitions; all methods may be called from any thread.

    Args:
        store: Where pages lie.
        registry: Where they are found.
        limits: Bounds on the wire and on waiting readers.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.

    Attributes:
        waits: Counts and bounds the readers that wait, here or by `watch`.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        versions: SchemaVersions | None = None,
    ) -> None:
        super().__init__(store, registry, versions)
        self._chunks = ChunkReader(store, limits, versions)
        self._lookups = KeptLookups()
        self._turns: SharedReads[_SharedTurn] = SharedReads()
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
        """Yield `(batch, start_offset, end_offset)` of one partition from `offset` on; see `read`.

        Several threads may do so for partitions of one request, under one state.
        """
        read = Read.of(topic, [PartitionCursor(partition, offset)], selection)
        for chunk in self.read(read, state, cancel):
            ((_, start_offset, end_offset, _),) = chunk.ranges
            yield chunk.batch, start_offset, end_offset

    def read(
        self,
        read: Read,
        state: FetchState,
        cancel: Cancel,
        begin: Callable[[], Iterable[PartitionCursor]] | None = None,
    ) -> Iterator[FetchedChunk]:
        """Yield chunks until the request has enough or its deadline passes.

        What is committed is delivered, up to `state.max_messages`. Then, while the request has
        fewer than `state.min_messages`, blocks until more is committed, another read of the request
        brings enough, `cancel` is set, or the deadline passes. A deadline in the past still
        delivers what is committed. Nothing is delivered twice.

        The cursors move with the rows; empty chunks (a filter dropped a whole range) are not
        yielded. With a filter, reading stops after the deadline once some rows were looked at.

        Args:
            read: The partitions and where they stand.
            state: The budget and deadline.
            cancel: Ends the read.
            begin: Returns its partitions, once commits are heard, so that none in between is
                missed. None: they are known, and looked at again if the read hears its topic.

        Raises:
            OffsetOutOfRange: An offset is below its log's start; names the partition.
            TopicNotFound: The topic was deleted, also during the wait.
            StorageCorrupt: A page is damaged; names the partition. The rows before it were
                delivered.
            SchemaMismatch: A row has a value that the topic's schema, an earlier version, cannot
                hold; names the partition. The rows before it were delivered.
            InvalidFilter: The filter fails on the data.
            ResourceExhausted: Too many readers wait already.
            WingsError: The error that `cancel` was set with.
        """
        state.wake_when_enough(cancel.wake)
        read.allowance = Allowance(state.deadline, cancel)
        follows = state.min_messages >= UNLIMITED
        with ExitStack() as watching:
            if read.hears_topic:
                watching.enter_context(self._heard(read, cancel.wake.notify))
            if begin is not None:
                with calls_until(state.deadline):
                    read.rotation.add_all(begin())
            elif read.changes is not None:
                read.changes.hear(None)  # For what was committed in between.
            if not follows and read.rotation.ready > 1:
                # Or those in front would be all that is ever read by polls that take few each.
                read.rotation.skip(random.randrange(read.rotation.ready))
            while True:
                # Cleared before the look, so that a commit after the look is not missed.
                cancel.wake.clear()
                cancel.check()
                for chunk in self.take(read, state):
                    if chunk.batch.num_rows:
                        yield chunk
                    cancel.check()
                if state.full or state.enough or state.deadline.passed:
                    return
                if read.changes is None:
                    with calls_until(state.deadline):
                        watching.enter_context(self._heard(read, cancel.wake.notify))
                with self.waits.one():
                    cancel.wake.wait(state.deadline.remaining())

    def scan(self, read: Read, cancel: Cancel) -> Iterator[FetchedChunk]:
        """Yield the rows of each partition up to its stop; never waits.

        The cursors move with the rows; empty chunks are left out.

        Raises: as `read`, and
            Unavailable: Metadata cannot be reached, and what is known of it ends before a stop.
        """
        read.allowance = Allowance(cancel=cancel)
        state = FetchState(Deadline.never(), UNLIMITED, UNLIMITED)
        while read.rotation.ready:
            for chunk in self.turn(read, state):
                if chunk.batch.num_rows:
                    yield chunk
                cancel.check()
            if read.is_cut:
                raise Unavailable("metadata cannot be asked where the scan's other messages lie")

    def take(self, read: Read, state: FetchState) -> Iterator[FetchedChunk]:
        """Yield what is committed, within the budget; never waits for commits.

        Chunks may be empty, where a filter dropped all of their ranges.

        Raises: as `read`.
        """
        follows = state.max_messages >= UNLIMITED
        with calls_until(state.deadline):
            self.hear(read)
        if follows:
            yield from self._shared_turn(read, state)
        while read.rotation.ready and not state.full:
            yield from self.turn(read, state)
            if read.filtered_rows and state.deadline.passed:
                return
            if follows:
                with calls_until(state.deadline):
                    self.hear(read)  # So that no new rows wait for old ones to end.
        self._count(read, state)

    def turn(self, read: Read, state: FetchState) -> Generator[FetchedChunk]:
        """Yield a slice of the budget of the partitions whose turn it is.

        A caller that reads several topics in turn exhausts one slice before it begins the next, or
        closes it: the cursors stand behind what was yielded. A slice ends before a page that is to
        be looked for again.

        Raises: as `read`.
        """
        rotation = read.rotation
        filters = read.selection.row_filter is not None
        # A filter that passed few rows so far looks at ever more of them at a time: one that took
        # as many as are still wanted would be called for each small page.
        wanted = max(1, state.max_messages - state.delivered)
        rows = min(wanted + read.filtered_rows, TURN_ROWS_MAX)
        each = max(1, rows // rotation.ready)
        if rows == TURN_ROWS_MAX:
            each = min(rows, max(each, TURN_ROWS_MIN))
        cursors = rotation.turn(each, rows, POSITIONS_MAX)
        before = [cursor.offset for cursor in cursors]
        with calls_until(state.deadline):
            lookup = self._look(read, cursors, each)
        reserved = 0
        try:
            _settle(read, cursors, lookup)
            # A filter is given whole pages: what it drops of them is not looked at again.
            plan = lookup.plan(cursors, UNLIMITED if filters else each)
            if plan.rows:
                self._count(read, state)
                # A turn takes for the whole read: the rotation divides it.
                reserved = state.reserve(plan.rows, max(1, read.counted))
            if reserved == 0:
                return
            chunks = self._chunks.read(
                read.topic, cursors, plan, reserved, read.selection, read.allowance
            )
            for chunk in each_until(state.deadline, chunks):
                delivered = chunk.batch.num_rows
                state.release(delivered, delivered)
                reserved -= delivered
                read.filtered_rows += chunk.looked_at if filters else 0
                yield chunk
                if filters and state.deadline.passed:
                    return
        except PageFailed as failed:
            with calls_until(state.deadline):
                self._fail_page(read, failed)
        except FilterTimedOut:
            # A read that has looked at some rows goes on where it stands; one that has not would
            # stand there for ever.
            if not (read.filtered_rows and state.deadline.passed):
                raise
        finally:
            state.release(reserved, 0)
            rotation.rotate(len(lookup.bounds), before)

    def watch(
        self, reads: Iterable[Read], callback: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Call back during the block on commits that are worth another `take`; holds no thread.

        Each read looks at its partitions again then. See `OffsetRegistry.watch`.
        """
        known = list(reads)
        for read in known:
            read.changes = GatheredChanges(read.note)

        def heard() -> None:
            for read in known:
                assert read.changes is not None
                read.changes.hear(None)
            callback()

        positions = [position for read in known for position in _positions(read)]
        return self._registry.watch(positions, heard)

    def states(self, topic: Topic, chosen: Chosen) -> Sequence[PartitionState]:
        """Return where partitions stand now, those that were named in their order.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        if chosen.named is None:
            return chosen.of(self._registry.partition_states(topic.uuid))
        if len(chosen.named) == 1:  # Remembered where metadata cannot be reached.
            return [self._registry.partition_state(topic.uuid, chosen.named[0])]
        found: list[PartitionState] = []
        for first in range(0, len(chosen.named), POSITIONS_MAX):
            some = [(partition, 0) for partition in chosen.named[first : first + POSITIONS_MAX]]
            found += [each.state for each in self._registry.locate_many(topic.uuid, some, 0)]
        return found

    def hear(self, read: Read) -> None:
        """Take what was committed since the last call into a read that is watched."""
        ends = {} if read.changes is None else read.changes.take()
        if ends is None:
            if not read.hears_topic:
                read.rotation.look_again()
                return
            states = self.states(read.topic, read.chosen)
            ends = {state.partition: state.next_offset for state in states}
        for partition, log_end in ends.items():
            cursor = read.rotation.cursors.get(partition)
            if cursor is not None:
                read.rotation.extend(cursor, log_end)
            elif log_end > 0:
                cursor = PartitionCursor(partition, 0, log_end, log_end, clamps=True)
                read.rotation.add_all([cursor])

    @contextmanager
    def _heard(self, read: Read, wake: Callable[[], None]) -> Generator[None]:
        """Hear of commits to a read's partitions during the block; each calls `wake`.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        if not read.hears_topic:
            with self.watch([read], wake):
                yield
            return
        read.changes = changes = GatheredChanges(wake, read.chosen)
        with self._registry.watch_topic(read.topic.uuid, changes.hear):
            yield

    def _look(self, read: Read, cursors: Sequence[PartitionCursor], rows_each: int) -> Lookup:
        """Find the pages of the next rows of partitions, so many rows of each at most."""
        topic, registry = read.topic.uuid, self._registry

        def locate(at: Positions) -> Pages:
            if len(at) <= FEW_PARTITIONS:
                return registry.locate_many(topic, at, rows_each, LOCATIONS_MAX)
            return registry.locate_slices(topic, at, rows_each)

        with tracing.span("metadata.locate"):
            if len(cursors) > 1:
                return self._lookups.find(read.topic, cursors, rows_each, locate)
            (cursor,), looked_at = cursors, time.monotonic()
            partition, pages = cursor.partition, ()
            try:
                found = registry.locate(topic, partition, cursor.offset, rows_each, read.since)
                start, end, pages = found.log_start_offset, found.log_end_offset, found.locations
                looked_at = looked_at if found.asked_at is None else found.asked_at
            except OffsetOutOfRange as error:  # `_settle` judges whether that is an error.
                start = error.log_start_offset
                end = max(start, cursor.log_end)
            state = PartitionState(partition, start, end, 0, None)
            return Lookup([LocatedPartition(state, pages)], looked_at)

    def _shared_turn(self, read: Read, state: FetchState) -> Iterator[FetchedChunk]:
        """Yield what followers at the same place share: little, of few partitions."""
        rotation = read.rotation
        if not 0 < rotation.ready <= FEW_PARTITIONS:
            return
        cursors = rotation.turn(1, FEW_PARTITIONS, FEW_PARTITIONS)
        known = [cursor.stop - cursor.offset for cursor in cursors if cursor.stop != UNKNOWN]
        if sum(known) > TURN_ROWS_MIN:
            return
        places = tuple([(cursor.partition, cursor.offset) for cursor in cursors])
        key = (read.topic.uuid, read.selection.wish, places)
        with calls_until(state.deadline):
            found = self._turns.get(key, lambda: self._read_turn(read, cursors))
        if found is None:
            return
        for cursor, end in zip(cursors, found.ends, strict=True):
            cursor.offset = end
            cursor.log_end = max(cursor.log_end, end)
            if cursor.stop != UNKNOWN:
                cursor.stop = max(cursor.stop, end)
            elif found.looked_at >= read.since:
                cursor.stop = end
        rotation.rotate(len(cursors), [offset for _, offset in places])
        yield from found.chunks

    def _read_turn(self, read: Read, cursors: Sequence[PartitionCursor]) -> _SharedTurn | None:
        """Read all rows behind cursors, which do not move; None where that is not to be shared."""
        known = [replace(cursor) for cursor in cursors]
        lookup = self._look(read, known, TURN_ROWS_MIN)
        if len(lookup.bounds) < len(known) or not all(lookup.has_pages):
            return None
        for cursor, (start, end) in zip(known, lookup.bounds, strict=True):
            if cursor.offset < start:
                return None
            cursor.stop = end
        wanted = sum([cursor.stop - cursor.offset for cursor in known])
        plan = lookup.plan(known, TURN_ROWS_MIN)
        if (
            plan.rows < wanted
            or sum([each.location.bytes for each in plan.parts]) > SHARED_BYTES_MAX
        ):
            return None
        try:
            chunks = list(
                self._chunks.read(
                    read.topic, known, plan, UNLIMITED, read.selection, read.allowance
                )
            )
        except (PageFailed, FilterTimedOut):
            return None  # A turn of its own says what is wrong.
        batches = copied(chunk.batch for chunk in chunks)
        shared = [chunk._replace(batch=batch) for chunk, batch in zip(chunks, batches, strict=True)]
        return _SharedTurn(shared, [cursor.stop for cursor in known], lookup.looked_at)

    def _fail_page(self, read: Read, failed: PageFailed) -> None:
        """Have a page looked for again, or end the read of the partitions that stand at it."""
        self._lookups.discard(read.topic)
        read.note()  # Or another look made since its beginning would do, with the page's old place.
        for cursor in failed.cursors:
            if isinstance(failed.error, SchemaMismatch) or not self._is_elsewhere(
                read, cursor, failed
            ):
                _fail(read, cursor, _named(failed.error, cursor.partition))

    def _is_elsewhere(self, read: Read, cursor: PartitionCursor, failed: PageFailed) -> bool:
        """Tell whether a page could not be read because it is gone or somewhere else by now.

        Raises:
            TopicNotFound: Its topic was deleted.
        """
        (found,) = self._registry.locate_many(
            read.topic.uuid, [(cursor.partition, cursor.offset)], 1
        )
        if found.state.log_start_offset > cursor.offset:
            return True  # The next turn says whether that is an error.
        cursor.moves += 1
        moved = bool(found.locations) and found.locations[0].address != failed.address
        return moved and cursor.moves <= MOVES_MAX

    def _count(self, read: Read, state: FetchState) -> None:
        """Have the budget count the partitions of a read that still have rows."""
        ready = read.rotation.ready
        if ready != read.counted:
            state.recount(ready - read.counted)
            read.counted = ready


def _settle(read: Read, cursors: Sequence[PartitionCursor], lookup: Lookup) -> None:
    """Take what a look found of partitions into their cursors."""
    is_fresh = lookup.looked_at >= read.since
    for cursor, (start, end), has_pages in zip(
        cursors, lookup.bounds, lookup.has_pages, strict=False
    ):
        if end > cursor.log_end:
            cursor.log_end = end
        cursor.log_start = start
        if cursor.offset < start:
            if cursor.clamps:
                cursor.offset = start
            else:
                _fail(read, cursor, below_start(cursor.partition, cursor.offset, start))
        elif not has_pages:
            # Nothing is there, even where something was known to be.
            read.is_cut |= lookup.looked_at == -math.inf and cursor.stop != UNKNOWN
            cursor.stop = cursor.offset
        elif is_fresh and cursor.stop == UNKNOWN:
            cursor.stop = end


def _fail(read: Read, cursor: PartitionCursor, error: WingsError) -> None:
    """End the read of a partition; raises the error where the read does not gather them."""
    if read.failures is None:
        raise error from None
    read.failures[cursor.partition] = error
    cursor.end()


def _positions(read: Read) -> list[Position]:
    """Return where a read waits."""
    uuid = read.topic.uuid
    cursors = [cursor for cursor in read.rotation.cursors.values() if not cursor.is_over]
    return [Position(uuid, cursor.partition, cursor.offset) for cursor in cursors]


def _named(error: WingsError, partition: Partition) -> WingsError:
    """Return an error that names the partition, and the offset where one is known."""
    offset = error.facts.get("offset")
    at = "" if offset is None else f", offset {offset}"
    facts = {**error.facts, "partition": partition_value(partition)}
    return type(error)(f"partition {partition:.80}{at}: {error.message}", **facts)
