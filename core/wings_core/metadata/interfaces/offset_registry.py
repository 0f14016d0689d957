"""The log's index of offsets.

Where the rows of many partitions lie is answered as columns, without a Python object for each page:
a read of 10,000 partitions looks up many times as many pages, and what is done to all of them is
done by Arrow's kernels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.metadata.waiting import Wake
from wings_core.model import (
    CommitBatch,
    CommitResult,
    CommittedOffset,
    FlushId,
    InlineFolio,
    Located,
    LocatedPartition,
    Location,
    MemberEpoch,
    PageAddress,
    PartitionState,
    Position,
    Topic,
    page_format,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import Deadline

_INT = pa.int64()

SLICES = pa.schema(
    [
        pa.field("place", _INT, nullable=False),
        pa.field("start_offset", _INT, nullable=False),
        pa.field("end_offset", _INT, nullable=False),
        pa.field("timestamp", _INT, nullable=False),
        pa.field("folio", _INT, nullable=False),
        pa.field("position", _INT, nullable=False),
        pa.field("length", _INT, nullable=False),
        pa.field("first_timestamp", _INT),
        pa.field("format", _INT, nullable=False),
        pa.field("first_row", _INT),
        pa.field("slice_bytes", _INT),
        pa.field("schema_version", _INT, nullable=False),
    ]
)
"""Schema of `ManyLocated.slices`: a row is a `Location`, but for `place`, the index of the position
that it was found for, and `folio`, an index into `folios`."""


@dataclass(frozen=True, slots=True)
class ManyLocated:
    """Pages that `OffsetRegistry.locate_slices` found at one moment."""

    log_start_offsets: Sequence[int]
    """Start of the log at each of the positions looked at."""
    log_end_offsets: Sequence[int]
    slices: pa.RecordBatch
    """Rows of `SLICES`, by place, then by offset."""
    folios: Sequence[str]
    """Names of folios, in an order in which they are read well."""

    def __len__(self) -> int:
        """The number of positions looked at."""
        return len(self.log_start_offsets)


def locations_of(slices: pa.RecordBatch, folios: Sequence[str]) -> list[Location]:
    """Return rows of `SLICES`, and of the columns that come after, as locations.

    Raises:
        Internal: A page is of a format that only a later version knows.
    """
    columns = [column.to_pylist() for column in slices.columns[: len(SLICES)]]
    found: list[Location] = []
    for _, start, end, timestamp, folio, position, length, first_timestamp, number, *rest in zip(
        *cast("list[list[Any]]", columns), strict=True
    ):
        address = PageAddress(folios[cast("int", folio)], position, length)
        known = page_format(number)
        found.append(Location(start, end, timestamp, address, first_timestamp, known, *rest))
    return found


def many_located(found: Iterable[LocatedPartition]) -> ManyLocated:
    """Return as columns what was found partition by partition."""
    starts: list[int] = []
    ends: list[int] = []
    rows: list[tuple[int | None, ...]] = []
    known: list[LocatedPartition] = list(found)
    names = sorted({each.address.folio for _, locations in known for each in locations})
    index_of = {name: index for index, name in enumerate(names)}
    for place, (state, locations) in enumerate(known):
        starts.append(state.log_start_offset)
        ends.append(state.next_offset)
        for start, end, timestamp, address, first_timestamp, number, *rest in locations:
            folio, position, length = address
            at = (place, start, end, timestamp, index_of[folio], position, length)
            rows.append((*at, first_timestamp, number, *rest))
    columns: Iterable[Sequence[int | None]] = (
        zip(*rows, strict=True) if rows else [()] * len(SLICES)
    )
    arrays = [pa.array(values, _INT) for values in columns]
    return ManyLocated(starts, ends, pa.RecordBatch.from_arrays(arrays, schema=SLICES), names)


def run_starts(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """Tell of each value whether it differs from the one before it; there are no nulls."""
    first = pa.array([True] if len(values) else [], pa.bool_())
    return pa.concat_arrays([first, pc.not_equal(values[1:], values[:-1])])


def numbered(starts: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return which run each value is in, from 0 on.

    Args:
        starts: Which values begin one, the first at least.
    """
    return pc.subtract(pc.cumulative_sum(starts.cast(_INT)), 1)


def integers(column: "pa.Array[Any]") -> list[int]:
    """Return the values of a column of integers without nulls."""
    return cast("list[int]", column.to_pylist())


LOCATIONS_MAX = 1_000
"""The most locations that one `locate` returns."""

POSITIONS_MAX = 10_000
"""The most partitions that one `locate_many` asks for."""

MANY_LOCATIONS_MAX = 10_000
"""The most locations that one `locate_many` returns."""

RETIRE_MAX = 1_000
"""The most folios that are retired in one transaction."""

OFFSET_MAX = (1 << 63) - 1
"""The largest integer that every store keeps; offsets asked for may be any integers."""


class OffsetRegistry(Protocol):
    """The log's index: which offsets of which partition lie where."""

    def commit(
        self,
        batches: Sequence[CommitBatch],
        flush_id: FlushId | None = None,
        inline: InlineFolio | None = None,
    ) -> list[CommitResult]:
        """Assign offsets to the batches of one flush, in order, in one durable transaction.

        Each batch is judged against a state that includes the batches before it, and is accepted
        or rejected as a whole; a rejected batch rejects the later batches of its stream with the
        same error. Waiters of the partitions are woken after the transaction is durable.

        A batch's timestamp is raised to the partition's last one where it is earlier. One of a
        producer more than an hour ahead of the clock is rejected with `InvalidArgument`.

        A batch with a `stage` gets no offsets: its pages are kept for `Stages.publish`. Its first
        one begins the stage; see `metadata.stages` for who may add to it.

        Args:
            batches: Their pages are durable in storage, or in `inline`.
            flush_id: Makes the commit idempotent: the writer's last flush again, whatever batches
                come with it, is answered with its first results and changes nothing.
            inline: A folio of this flush alone, which becomes durable with the transaction.

        Returns:
            One result for each batch, in order; for a series the one that all of its batches share,
            or `SeriesResults`. A batch can be rejected with `TopicNotFound`,
            `OutOfOrderSequence`, `PublishFenced` (an earlier epoch of its `partition_sequence`),
            `OffsetMismatch` or `InvalidArgument`; a staged one also with `AlreadyExists`,
            `StageNotFound` or `BatchTooLarge`. A staged repeat is answered with 0 rows.

        Raises:
            Internal: The transaction failed; none of the batches is committed. Also for a flush
                before the writer's last one, which may come late and must not be committed then,
                and for one whose folio was retired meanwhile; see `retire`.
            ResourceExhausted: The same, because the disk is full.
            Unavailable: The same, because the store could not be reached in time.
            InvalidArgument: The inline folio has another name, or more bytes than can be.
        """
        ...

    def read_inline(self, folios: Sequence[str]) -> dict[str, bytes]:
        """Return all bytes of inline folios.

        Args:
            folios: At least one, and at most `INLINE_FOLIOS_MAX`.

        Returns:
            Those to which a page refers: the others were drained, or deleted. A metadata service of
            an earlier version is asked for the first alone.

        Raises:
            InvalidArgument: They are more.
        """
        ...

    def locate(
        self,
        topic_uuid: str,
        partition: Partition,
        offset: int,
        messages_max: int,
        since: float | None = None,
    ) -> Located:
        """Find the pages that hold the messages from `offset` on; never waits.

        Args:
            topic_uuid: The topic.
            partition: One that need not have been written to yet.
            offset: First message wanted.
            messages_max: Stop once the pages hold this many messages from `offset` on; at least
                one. At most `LOCATIONS_MAX` pages are returned in any case.
            since: On the monotonic clock: what was found by a look that began no earlier will do,
                if it found any. None: only one from now on, but for one under way.

        Raises:
            TopicNotFound: The topic was deleted.
            OffsetOutOfRange: `offset` is below the log's start.
        """
        ...

    def locate_many(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> list[LocatedPartition]:
        """Find pages of many partitions of a topic at one moment; never waits.

        Args:
            topic_uuid: The topic.
            positions: Partitions, each at most once and not necessarily written to yet, and the
                first offset wanted of each; at most `POSITIONS_MAX`.
            messages_max: Stop in a partition once its pages hold this many messages from its offset
                on; 0: where the partitions stand is all that is wanted. Pages may be fewer, but one
                at least where there is a message.
            locations_max: The most pages altogether, at least 1 and at most `MANY_LOCATIONS_MAX`.

        Returns:
            One entry for each of the first positions, in order: as many as `locations_max` allows,
            and one at least where there is a position. The last may have fewer pages than it would
            by `messages_max`.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def locate_slices(
        self,
        topic_uuid: str,
        positions: Sequence[tuple[Partition, int]],
        messages_max: int,
        locations_max: int = MANY_LOCATIONS_MAX,
    ) -> ManyLocated:
        """Find what `locate_many` finds, as columns; for reads of so many that objects cost.

        Args: as of `locate_many`, but `messages_max` is at least 1, and a partition without a page
            may count as one to `locations_max`.

        Raises:
            TopicNotFound: The topic was deleted.
            Internal: Which only a reader of the location may notice: a page's format is unknown.
        """
        ...

    def wait(self, positions: Sequence[Position], deadline: Deadline, wake: Wake) -> None:
        """Block until any position has a message at or after its offset.

        Also returns when another thread sets `wake`, when the deadline passes, and when a
        topic among them is deleted. It may return early; callers look again with `locate`. The
        caller clears `wake` before it looks, so that no commit in between is missed.

        Args:
            positions: Waited for all at once.
            deadline: The end of the wait.
            wake: Set by commits to one of the positions, and by a thread that ends the wait.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        with self.watch(positions, wake.notify):
            wake.wait(deadline.remaining())

    def watch(
        self, positions: Sequence[Position], callback: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Call back when any position has a message at or after its offset, and hold no thread.

        During the `with` block, `callback` is called after each commit that brings such a message,
        once however many of the positions it wrote to, and when a topic among them is deleted; and
        at once, on entering, where there is one already or a topic is gone. It is called from the
        committing thread, so it must be quick and must not raise; one call may still be under way
        when the block has ended. Over a network it is called a while after the commit (or after
        entering), commits that follow one another may share a call, and partitions need not.

        Args:
            positions: Watched all at once.
            callback: Takes no argument: the caller looks again with `locate`.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        ...

    def watch_topic(
        self, topic_uuid: str, callback: Callable[[Mapping[Partition, int] | None], None]
    ) -> AbstractContextManager[None]:
        """Call back with what is committed to any partition of a topic, and hold no thread.

        During the `with` block, `callback` is called after each commit to the topic with the next
        offset of each partition that it wrote to; commits that follow one another may share a call.
        It is called with None where any partition may have been written to, or the topic deleted:
        the caller looks at all of them again. What is committed after the block was entered is told
        of; over a network, the callback with None a while after entering stands for all that was
        committed until then. Called from any thread, it must be quick and must not raise; one call
        may still be under way when the block has ended.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        ...

    def partition_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        items_max: int | None = None,
    ) -> list[PartitionState]:
        """Return the partitions written to so far, by value.

        The partition of a topic without a key, and numbered ones, are returned always.

        Which of them a part of the list has, goes by their JSON text, the order that they are found
        in quickly.

        Args:
            topic_uuid: The topic.
            after: Only those whose JSON text is greater; None: all.
            items_max: So many of them, whose text is the least; None: all.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def partition_state(self, topic_uuid: str, partition: Partition) -> PartitionState:
        """Return one partition's state; one never written to stands at 0.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def offset_for_timestamp(self, topic_uuid: str, partition: Partition, timestamp: int) -> int:
        """Return what `offsets_for_timestamps` finds of one partition."""
        (offset,) = self.offsets_for_timestamps(topic_uuid, [(partition, timestamp)])
        return offset

    def offsets_for_timestamps(
        self, topic_uuid: str, positions: Sequence[tuple[Partition, int]]
    ) -> list[int]:
        """Return the offsets of the first messages at or after times, else the next offsets.

        Where such a message is in a merged page, this is the first offset of the page: the
        timestamps of its rows are in the page itself (see `Fetcher.offsets_for_timestamps`).

        Args:
            topic_uuid: The topic.
            positions: Partitions, not necessarily written to yet, and a time of each, in
                microseconds since the epoch; at most `POSITIONS_MAX`.

        Returns:
            One offset for each, in order, all as of one moment.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def commit_offsets(
        self,
        consumer: str,
        offsets: Sequence[tuple[Topic, Partition, int]],
        member: MemberEpoch | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Store the offsets that a named consumer reads on from, all in one transaction.

        Args:
            consumer: Its name.
            offsets: The next offset to read, by topic and partition.
            member: The member of the consumer's group that commits; None: it has no members.
            notes: Texts to keep with the offsets, one for each; empty for none.

        Raises:
            FencedMember: The member does not hold one of the partitions, or no member is stated
                and the group has members; nothing is stored.
            TopicNotFound: One of the topics was deleted; nothing is stored.
            OffsetOutOfRange: An offset is past the end of its log, as the facts `topic`,
                `partition` and `log_end_offset` say; nothing is stored.
            InvalidArgument: An offset that no log can have, or a name, partition or note that
                cannot be stored; nothing is stored.
        """
        ...

    def get_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        *,
        after: tuple[TopicName, Partition] | None = None,
        items_max: int | None = None,
    ) -> list[CommittedOffset]:
        """Return a named consumer's offsets, of one topic or of all, by topic and partition.

        Args:
            consumer: Its name.
            topic_uuid: The topic; None: all.
            after: Only offsets of a greater topic and partition; None: all.
            items_max: Most offsets returned; None: all.
        """
        ...

    def forget_offsets(
        self,
        consumer: str,
        topic_uuid: str | None = None,
        partitions: Sequence[Partition] = (),
    ) -> None:
        """Delete offsets of a named consumer whose group has no members, in one transaction.

        Args:
            consumer: Its name; one without offsets is left as it is.
            topic_uuid: The topic; None: all.
            partitions: Partitions of the topic; empty: all.

        Raises:
            FencedMember: The consumer's group has members; nothing is deleted.
        """
        ...

    def list_consumers(self, consumers_max: int, *, after: str | None = None) -> list[str]:
        """Return the consumers that have an offset in a topic that exists, by name.

        Args:
            consumers_max: The first so many.
            after: Only consumers whose name is greater; None: all.
        """
        ...

    def purge(self, pages_max: int) -> bool:
        """Delete up to `pages_max` pages of deleted topics and stages, and results out of date.

        Returns:
            True while there is more to delete.
        """
        ...

    def live_folios(self, *, after: str | None = None, items_max: int | None = None) -> set[str]:
        """Return the folios that at least one page still refers to, visible or staged.

        Args:
            after: Only those whose name is greater; None: all.
            items_max: The first so many of them, by name; None: all.
        """
        ...

    def retire(self, folios: Sequence[str]) -> list[str]:
        """Fence folios before they are deleted: later commits that reference them are rejected.

        A commit that names a retired folio is rejected as a whole, however late it arrives: so a
        folio may be deleted although a commit to it is still under way. That holds for
        `folios.RETIRED_KEPT_US`. Retiring a folio again changes nothing.

        Args:
            folios: At most `RETIRE_MAX`.

        Returns:
            Those that may be deleted now, in the order given: the ones to which no page refers,
            visible or staged. None, and nothing is changed, while a lease is held whose name begins
            with `maintenance.KEEPS_FOLIOS`.
        """
        ...
