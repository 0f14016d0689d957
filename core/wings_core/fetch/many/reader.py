"""Reads many partitions of a topic: a turn of some partitions at a time, and one wait for all.

A scan ends where it ends for each partition. A fetch and a follow go on with what the topic's watch
tells: a wake-up costs for the partitions that were written to, however many are read.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from wings_core.errors import OffsetOutOfRange
from wings_core.fetch.chunks import placed
from wings_core.fetch.engines import Allowance, FilterTimedOut
from wings_core.fetch.fetcher import LOCATE_ROWS_MAX, MOVES_MAX, UNLIMITED, Cancel
from wings_core.fetch.many.ahead import AHEAD_PARTITIONS_MIN, LookAhead
from wings_core.fetch.many.chunks import ManyChunk, ManyChunks, PieceFailed
from wings_core.fetch.many.lookups import KeptLookups, Lookup
from wings_core.fetch.many.pieces import plan_of
from wings_core.fetch.many.rotation import PartitionCursor, Rotation
from wings_core.fetch.selection import Selection
from wings_core.fetch.shared import SHARED_BYTES_MAX, SharedReads, copied
from wings_core.fetch.state import FetchState
from wings_core.fetch.waits import Waits
from wings_core.limits import Limits
from wings_core.metadata.changes import TopicChanges
from wings_core.metadata.interfaces import POSITIONS_MAX, OffsetRegistry
from wings_core.metadata.located import ManyLocated, many_located
from wings_core.model import PartitionState, Topic
from wings_core.partitions import Partition, partition_value
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.interfaces import FolioStore

TURN_ROWS_MIN = 8_192
"""The least rows of a partition in one turn of a scan or follow, as far as they are there."""


TURN_BEGUN = AHEAD_PARTITIONS_MIN
"""The most partitions of a turn that is not looked up ahead, of a scan or follow: its reader waits
for that look."""

SHARED_PARTITIONS_MAX = 64
"""The most partitions of a turn that followers share."""


@dataclass(slots=True)
class ManyRead:
    """Many partitions of a topic being read."""

    topic: Topic
    selection: Selection
    wanted: Sequence[Partition] | None
    """The partitions; None: all, those born during the read too."""
    rotation: Rotation
    """Where they stand."""
    changes: TopicChanges | None = None
    """What was committed since the last look, while commits are watched."""
    filtered_rows: int = 0
    """How many rows its filter has looked at."""
    allowance: Allowance | None = None
    """How long the filter may take for a chunk."""
    ahead: LookAhead | None = None
    """Where the pages of the next turn of a scan or follow are looked for already."""


class ManyReader:
    """Reads many partitions as one stream; all methods may be called from any thread.

    Args:
        store: Where pages lie.
        registry: Where they are found.
        limits: Bounds on the wire.
        waits: Counts and bounds the readers that wait.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        waits: Waits,
        versions: SchemaVersions | None = None,
    ) -> None:
        self._chunks = ManyChunks(store, limits, versions)
        self._registry = registry
        self._lookups = KeptLookups()
        self._turns: SharedReads[Sequence[ManyChunk]] = SharedReads()
        self._waits = waits

    @contextmanager
    def watched(self, read: ManyRead, cancel: Cancel) -> Generator[TopicChanges]:
        """Hear of commits to a read's partitions during the block; each wakes `cancel`.

        Entered before the partitions are first looked at, so that no commit is missed; or else
        what it yields is told of all partitions once.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        wanted = None if read.wanted is None else frozenset(read.wanted)
        read.changes = changes = TopicChanges(cancel.wake.notify, wanted)
        with self._registry.watch_topic(read.topic.uuid, changes.hear):
            yield changes

    def states(
        self, topic: Topic, partitions: Sequence[Partition] | None
    ) -> Sequence[PartitionState]:
        """Return where partitions stand now, those of a list in its order.

        Args:
            topic: The topic.
            partitions: Which, not necessarily written to yet; None: all that were written to.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        if partitions is None:
            return self._registry.partition_states(topic.uuid)
        found: list[PartitionState] = []
        for first in range(0, len(partitions), POSITIONS_MAX):
            some = [(partition, 0) for partition in partitions[first : first + POSITIONS_MAX]]
            found += [each.state for each in self._registry.locate_many(topic.uuid, some, 0)]
        return found

    def scan(self, read: ManyRead, cancel: Cancel) -> Iterator[ManyChunk]:
        """Yield the rows of each partition up to its stop; never waits.

        The cursors move with the rows; empty chunks are left out.

        Raises: as `read`.
        """
        read.allowance = Allowance(cancel=cancel)
        try:
            while read.rotation.ready:
                for chunk in self._turn(read, UNLIMITED, UNLIMITED, looks_ahead=True):
                    if chunk.batch.num_rows:
                        yield chunk
                    cancel.check()
        finally:
            if read.ahead is not None:
                read.ahead.end()

    def read(self, read: ManyRead, state: FetchState, cancel: Cancel) -> Iterator[ManyChunk]:
        """Yield chunks until the request has enough or its deadline passes; within `watched`.

        What is committed is delivered, up to `state.max_messages`. Then, while the request has
        fewer than `state.min_messages`, blocks until more is committed, `cancel` is set, or the
        deadline passes. A deadline in the past still delivers what is committed. Nothing is
        delivered twice; empty chunks are left out. With a filter, reading stops after the deadline
        once some rows were looked at.

        Raises:
            OffsetOutOfRange: A partition's offset is below its log's start; names the partition.
            TopicNotFound: The topic was deleted, also during the wait.
            StorageCorrupt: A page is damaged; names the partition. The rows before it were
                delivered.
            InvalidFilter: The filter fails on the data.
            ResourceExhausted: Too many readers wait already.
            WingsError: What `cancel` was set with.
        """
        state.wake_when_enough(cancel.wake)
        read.allowance = Allowance(state.deadline, cancel)
        if state.max_messages < UNLIMITED and read.rotation.ready:
            # Or those in front would be all that is ever read by polls that take few each.
            read.rotation.skip(random.randrange(read.rotation.ready))
        try:
            while True:
                # Cleared before the look, so that a commit after the look is not missed.
                cancel.wake.clear()
                cancel.check()
                self._hear(read)
                follows = state.min_messages >= UNLIMITED
                if follows:
                    yield from self._shared_turn(read)
                for chunk in self.take(read, state, follows=follows):
                    if chunk.batch.num_rows:
                        yield chunk
                    cancel.check()
                if state.full or state.enough or state.deadline.passed:
                    return
                with self._waits.one():
                    cancel.wake.wait(state.deadline.remaining())
        finally:
            if read.ahead is not None:
                read.ahead.end()

    def take(
        self, read: ManyRead, state: FetchState, *, follows: bool = False
    ) -> Iterator[ManyChunk]:
        """Yield what is known to be committed, within the budget; never waits for commits.

        Chunks may be empty, where a filter dropped all of their ranges.

        Args:
            read: What is read.
            state: The budget and deadline.
            follows: Hear of commits between turns, so that no new rows wait for old ones to end.

        Raises: as `read`.
        """
        filtered = read.selection.row_filter is not None
        while read.rotation.ready and not state.full:
            wanted = state.reserve(state.max_messages)
            if wanted == 0:
                return
            # A filter that passed few rows so far looks at ever more of them at a time.
            try:
                looked_at_max = wanted + read.filtered_rows
                for chunk in self._turn(read, looked_at_max, wanted, looks_ahead=follows):
                    rows = chunk.batch.num_rows
                    if filtered:
                        read.filtered_rows += chunk.looked_at
                    state.release(rows, rows)
                    wanted -= rows
                    yield chunk
                    if filtered and state.deadline.passed:
                        return
            except FilterTimedOut:
                # As for one partition: a read that has looked at some rows goes on where it stands.
                if not (read.filtered_rows and state.deadline.passed):
                    raise
                return
            finally:
                state.release(wanted, 0)
            if follows:
                self._hear(read)

    def read_located(
        self,
        topic: Topic,
        cursors: Sequence[PartitionCursor],
        located: ManyLocated,
        rows_each: int,
        selection: Selection,
    ) -> Iterator[ManyChunk]:
        """Yield rows of partitions whose pages were found just now; the cursors move with them.

        Args:
            topic: The topic.
            cursors: The partitions; of each, rows from its offset to its stop.
            located: What was found of each of them.
            rows_each: The most rows of each.
            selection: Columns; without a filter.

        Raises:
            PieceFailed: A page is damaged, or is somewhere else or gone by now.
        """
        plan = plan_of(cursors, located, rows_each)
        yield from self._chunks.read(topic, cursors, plan, UNLIMITED, selection)

    def _turn(
        self, read: ManyRead, looked_at_max: int, rows_max: int, *, looks_ahead: bool = False
    ) -> Iterator[ManyChunk]:
        """Read the partitions whose turn it is.

        Args:
            read: What is read.
            looked_at_max: The most rows read of all of them together.
            rows_max: The most rows delivered.
            looks_ahead: Whether the pages of the next turn are looked for meanwhile.
        """
        rotation = read.rotation
        ahead, read.ahead = read.ahead, None
        if ahead is not None and ahead.is_current and rotation.begins_with(ahead.cursors):
            cursors, each, lookup = ahead.cursors, ahead.each, ahead.found()
        else:
            if ahead is not None:
                ahead.end()
            rows = min(looked_at_max, LOCATE_ROWS_MAX)
            each = max(1, rows // rotation.ready)
            if rows == LOCATE_ROWS_MAX:
                each = max(each, TURN_ROWS_MIN)
            # Looked up now, a turn of few is soon over; the next is looked up meanwhile.
            cursors = rotation.turn(each, rows, TURN_BEGUN if looks_ahead else POSITIONS_MAX)
            lookup = self._locate(read.topic, cursors, each)
        located = lookup.located
        if looks_ahead:
            read.ahead = self._look_ahead(read, len(located), each)
        before = [cursor.offset for cursor in cursors]
        try:
            _look(cursors, located)
            plan = lookup.plan(cursors, each)
            yield from self._chunks.read(
                read.topic, cursors, plan, rows_max, read.selection, read.allowance
            )
        except PieceFailed as failed:
            self._lookups.discard(read.topic)
            if failed.offset is not None or not self._is_elsewhere(read, failed):
                raise placed(failed.error, failed.cursor.partition, failed.offset) from None
        finally:
            rotation.rotate(len(located), before)

    def _locate(self, topic: Topic, cursors: Sequence[PartitionCursor], each: int) -> Lookup:
        """Find the pages of the next rows of partitions, so many rows of each at most."""
        return self._lookups.find(
            topic,
            cursors,
            each,
            lambda positions: self._registry.locate_slices(topic.uuid, positions, each),
        )

    def _look_ahead(self, read: ManyRead, cursors: int, each: int) -> LookAhead | None:
        """Begin to look for the pages of the turn after that of the first so many partitions."""
        following = read.rotation.turn(each, LOCATE_ROWS_MAX, POSITIONS_MAX, after=cursors)
        if len(following) < AHEAD_PARTITIONS_MIN:
            return None
        with suppress(RuntimeError):  # Without a thread, it is looked for when its turn comes.
            return LookAhead(following, each, lambda: self._locate(read.topic, following, each))
        return None

    def _shared_turn(self, read: ManyRead) -> Iterator[ManyChunk]:
        """Yield what followers share who stand where this one does: few partitions, few bytes."""
        rotation = read.rotation
        if not 0 < rotation.ready <= SHARED_PARTITIONS_MAX:
            return
        cursors = rotation.turn(1, SHARED_PARTITIONS_MAX, SHARED_PARTITIONS_MAX)
        places = tuple((cursor.partition, cursor.offset, cursor.stop) for cursor in cursors)
        if sum(stop - offset for _, offset, stop in places) > TURN_ROWS_MIN:
            return
        key = (read.topic.uuid, read.selection.wish, places)
        chunks = self._turns.get(key, lambda: self._read_turn(read, cursors))
        if chunks is None:
            return
        before = [offset for _, offset, _ in places]
        for cursor in cursors:
            cursor.offset = cursor.stop
        rotation.rotate(len(cursors), before)
        yield from (chunk for chunk in chunks if chunk.batch.num_rows)

    def _read_turn(
        self, read: ManyRead, cursors: Sequence[PartitionCursor]
    ) -> Sequence[ManyChunk] | None:
        """Read all rows of partitions, which do not move; None where that is not to be shared."""
        known = [replace(cursor) for cursor in cursors]
        located = many_located(
            self._registry.locate_many(
                read.topic.uuid,
                [(cursor.partition, cursor.offset) for cursor in known],
                TURN_ROWS_MIN,
            )
        )
        plan = plan_of(known, located, TURN_ROWS_MIN)
        stored = sum(piece.location.bytes for piece in plan.pieces)
        wanted = sum(cursor.stop - cursor.offset for cursor in known)
        if stored > SHARED_BYTES_MAX or sum(plan.rows) < wanted:
            return None
        try:
            chunks = list(
                self._chunks.read(
                    read.topic, known, plan, UNLIMITED, read.selection, read.allowance
                )
            )
        except (PieceFailed, FilterTimedOut):
            return None  # A turn of its own says what is wrong.
        batches = copied(chunk.batch for chunk in chunks)
        return [chunk._replace(batch=batch) for chunk, batch in zip(chunks, batches, strict=True)]

    def _is_elsewhere(self, read: ManyRead, failed: PieceFailed) -> bool:
        """Tell whether a page could not be read because it is gone or somewhere else by now.

        Raises:
            TopicNotFound: Its topic was deleted.
        """
        cursor = failed.cursor
        (found,) = self._registry.locate_many(
            read.topic.uuid, [(cursor.partition, cursor.offset)], 1
        )
        if found.state.log_start_offset > cursor.offset:
            return True  # The next turn says whether that is an error.
        cursor.moves += 1
        moved = bool(found.locations) and found.locations[0].address != failed.address
        return moved and cursor.moves <= MOVES_MAX

    def _hear(self, read: ManyRead) -> None:
        """Take what was committed into the rotation."""
        assert read.changes is not None
        ends = read.changes.take()
        if ends is None:
            states = self.states(read.topic, read.wanted)
            ends = {state.partition: state.next_offset for state in states}
        for partition, log_end in ends.items():
            cursor = read.rotation.find(partition)
            if cursor is not None:
                read.rotation.extend(cursor, log_end)
            elif log_end > 0:
                read.rotation.add(PartitionCursor(partition, 0, log_end, log_end, clamps=True))


def _look(cursors: Sequence[PartitionCursor], located: ManyLocated) -> None:
    """Take what was found of partitions."""
    places = set(located.slices.column("place").unique().to_pylist())
    for place, (cursor, start, end) in enumerate(
        zip(cursors, located.log_start_offsets, located.log_end_offsets, strict=False)
    ):
        if end > cursor.log_end:
            cursor.log_end = end
        if cursor.offset < start:
            if not cursor.clamps:
                raise below_start(cursor.partition, cursor.offset, start)
            cursor.offset = start
        elif place not in places:
            # Nothing is there where something was known to be: the next turns have nothing to read.
            cursor.stop = cursor.offset


def below_start(partition: Partition, offset: int, log_start_offset: int) -> OffsetOutOfRange:
    """Return the error of an offset below a partition's start."""
    return OffsetOutOfRange(
        f"offset {offset} of partition {partition:.80} is below the log's start, "
        f"{log_start_offset}",
        partition=partition_value(partition),
        log_start_offset=log_start_offset,
    )
