"""Where a read begins and ends in each of its partitions, as a ticket or command says."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.contracts.reads import ALL, Offset, PartitionOptions, TimestampOffset
from wings_core.errors import InvalidTicket, StorageCorrupt
from wings_core.fetch.cursors import MOVES_MAX, Chosen, PartitionCursor, below_start
from wings_core.metadata.interfaces import POSITIONS_MAX, OffsetRegistry
from wings_core.model import Location, PartitionState, Topic
from wings_core.partitions import UNPARTITIONED, Partition, mask_of, partition_of, partitions_of
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.interfaces import FolioStore

ROWS_LOOKED_AT = 65_536
"""Rows whose times are looked at together, at least."""

_NO_POSITIONS: Mapping[Partition, int] = MappingProxyType({})


class TimeOffsets:
    """Finds the offsets of times; all methods may be called from any thread.

    Args:
        store: Where pages lie.
        registry: Where they are found.
        versions: Finds versions of schemas that came after a reader; None: topics have one each.
    """

    def __init__(
        self, store: FolioStore, registry: OffsetRegistry, versions: SchemaVersions | None = None
    ) -> None:
        self._store = store
        self._registry = registry
        self._versions = versions

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

    def offset_at_time(
        self, topic: Topic, partition: Partition, time: int
    ) -> tuple[int, int] | None:
        """Return the first message whose own time is at or after a time, and its own time.

        That is its `Topic.time_column`, or its timestamp in a topic without one.

        As no row is later than its page's timestamp, the look begins at the first page that is late
        enough. That page has the message, unless rows without a time came with a later timestamp:
        then the column is read on to the end of the log.

        Args:
            topic: The topic.
            partition: The partition, not necessarily written to yet.
            time: A time in microseconds since the epoch, as is the message's.

        Returns:
            The message's offset and time; None where there is none.

        Raises:
            TopicNotFound: The topic was deleted.
            StorageCorrupt: A page that tells is damaged.
        """
        column = topic.time_column
        wanted = () if column is None else (topic.schema.get_field_index(column),)
        unit_us = 1 if column is None else 1_000
        offset = self.offset_for_timestamp(topic, partition, time)
        least, moves = pa.scalar(-(-time // unit_us), pa.int64()), 0
        while True:
            located = self._registry.locate(topic.uuid, partition, offset, ROWS_LOOKED_AT)
            if not located.locations:
                return None
            offset = max(offset, located.log_start_offset)
            if self._versions is not None:
                topic = self._versions.covering(topic, located.locations)
            rows = Wanted(wanted, offset, timestamps=column is None)
            try:
                pages = read_pages(self._store, topic, located.locations, rows)
                for location, page in zip(located.locations, pages, strict=True):
                    own: Any = page.timestamps if column is None else page.rows.column(0)
                    times = pa.array([own]) if isinstance(own, int) else own.cast(pa.int64())
                    row = int(pc.index(pc.greater_equal(times, least), pa.scalar(True)).as_py())
                    if row >= 0:
                        return offset + row, int(times[row].as_py()) * unit_us
                    offset, moves = location.end_offset + 1, 0
            except StorageCorrupt:
                moves += 1  # By retention, or to another place.
                if moves > MOVES_MAX:
                    raise

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


def chosen_of(topic: Topic, options: PartitionOptions) -> Chosen:
    """Return the partitions that a ticket names, in its order, or all of a keyed topic.

    Raises:
        PartitionRequired: A null on a topic with a key.
        PartitionNotAllowed: A value on a topic without one.
        PartitionTypeMismatch: A value that is not of the key's kind.
        InvalidTicket: A slot that the topic does not have.
    """
    if options.partitions is None:
        return Chosen([partition_of(options.partition, topic.key_type)])
    if options.partitions == ALL:
        slots = options.slots
        if slots is not None and max(slots) >= topic.slots:
            raise InvalidTicket(f"key 'slots': the topic has the slots 0 to {topic.slots - 1}")
        if topic.partition_key is None:
            return Chosen([UNPARTITIONED] if slots is None or 0 in slots else [])
        return Chosen(None) if slots is None else Chosen(None, mask_of(slots), topic.slot_of)
    values = [entry.partition for entry in options.partitions]
    return Chosen(partitions_of(values, topic.key_type))


def cursors_of(
    offsets: TimeOffsets,
    topic: Topic,
    states: Sequence[PartitionState],
    options: PartitionOptions,
    end_offset: int | None = None,
    positions: Mapping[Partition, int] = _NO_POSITIONS,
) -> Iterator[PartitionCursor]:
    """Yield where each partition is read from, and up to what is committed now.

    Args:
        offsets: Finds the offsets of times.
        topic: The topic.
        states: Where the partitions stand, in the order of the list if there is one.
        options: The partitions of the ticket or command, and where to begin.
        end_offset: Where entries without one end; None: at what is committed.
        positions: Where to begin in some of all partitions, instead.

    Raises:
        OffsetOutOfRange: An offset is below its partition's start; names the partition.
    """
    listed = options.partitions if isinstance(options.partitions, tuple) else None
    # One that is named alone waits for the offset that is asked for, born or not.
    exists = topic.partition_key is None or options.partitions is None
    if listed is None and options.begin == "earliest" and end_offset is None and not positions:
        for partition, start, end, _, last in states:
            born = exists or last is not None
            yield PartitionCursor(partition, start, end, end, clamps=True, is_born=born)
        return
    begins: list[Offset] = [
        positions[state.partition]
        if state.partition in positions
        else options.begin
        if listed is None or (own := listed[index].offset) is None
        else own
        for index, state in enumerate(states)
    ]
    at_times = _at_times(offsets, topic, states, begins)
    for index, (state, begin) in enumerate(zip(states, begins, strict=True)):
        end = end_offset if listed is None else listed[index].end_offset
        end = end_offset if end is None else end
        start = at_times.get(state.partition)
        if start is None:
            start = _number(state, begin)
        if start < state.log_start_offset:
            raise below_start(state.partition, start, state.log_start_offset)
        yield PartitionCursor(
            state.partition,
            start,
            stop=state.next_offset if end is None else min(end, state.next_offset),
            log_end=state.next_offset,
            clamps=begin == "earliest",
            is_born=exists or state.last_timestamp is not None,
        )


def committed(
    registry: OffsetRegistry, topic: Topic, options: PartitionOptions
) -> Mapping[Partition, int]:
    """Return the offsets that the consumer of a read has committed, by partition."""
    if options.consumer is None:
        return _NO_POSITIONS
    offsets = registry.get_offsets(options.consumer, topic.uuid)
    return {each.partition: each.offset for each in offsets}


def _at_times(
    offsets: TimeOffsets, topic: Topic, states: Sequence[PartitionState], begins: Sequence[Offset]
) -> Mapping[Partition, int]:
    """Return the offsets of the partitions that begin at a time no later than their last one."""
    wanted: list[tuple[Partition, int]] = []
    for state, begin in zip(states, begins, strict=True):
        last = state.last_timestamp
        if isinstance(begin, TimestampOffset) and last is not None and begin.timestamp_us <= last:
            wanted.append((state.partition, begin.timestamp_us))
    return offsets.offsets_for_timestamps(topic, wanted) if wanted else {}


def _number(state: PartitionState, offset: Offset) -> int:
    """Return the offset that `"earliest"`, `"latest"`, a time past the last one or an int means."""
    if isinstance(offset, int):
        return offset
    return state.log_start_offset if offset == "earliest" else state.next_offset
