"""Cursors: where the read of each partition begins and ends, as a ticket or command says."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from wings_core.contracts.offsets import Offset, TimestampOffset
from wings_core.contracts.reads import ALL, Partitions
from wings_core.fetch.fetcher import Fetcher
from wings_core.fetch.many.reader import below_start
from wings_core.fetch.many.rotation import PartitionCursor
from wings_core.model import PartitionState, Topic
from wings_core.partitions import UNPARTITIONED, Partition, partitions_of

_NO_POSITIONS: Mapping[Partition, int] = MappingProxyType({})


def named_partitions(topic: Topic, partitions: Partitions) -> list[Partition] | None:
    """Return the partitions that a list names, in its order; None where it is all of a keyed topic.

    Raises:
        PartitionRequired: A null on a topic with a key.
        PartitionNotAllowed: A value on a topic without one.
        PartitionTypeMismatch: A value that is not of the key's kind.
    """
    if partitions == ALL:
        return [UNPARTITIONED] if topic.partition_key is None else None
    return partitions_of([entry.partition for entry in partitions], topic.key_type)


def cursors_of(
    fetcher: Fetcher,
    topic: Topic,
    states: Sequence[PartitionState],
    partitions: Partitions,
    offset: Offset | None,
    end_offset: int | None = None,
    positions: Mapping[Partition, int] = _NO_POSITIONS,
) -> Iterator[PartitionCursor]:
    """Yield where each partition is read from, and up to what is committed now.

    Args:
        fetcher: Finds the offsets of times.
        topic: The topic.
        states: Of the partitions, in the order of the list, if there is one.
        partitions: As the ticket says.
        offset: Of entries without one; None: `"earliest"`.
        end_offset: Of entries without one; None: what is committed.
        positions: Of all partitions: where to begin in some, instead.

    Raises:
        OffsetOutOfRange: An offset is below its partition's start; names the partition.
    """
    if partitions == ALL and offset in (None, "earliest") and end_offset is None and not positions:
        unpartitioned = topic.partition_key is None
        for partition, start, end, _, last in states:
            yield PartitionCursor(
                partition, start, end, end, clamps=True, is_born=last is not None or unpartitioned
            )
        return
    begins: Sequence[Offset] = [
        _begin(state.partition, index, partitions, offset, positions)
        for index, state in enumerate(states)
    ]
    at_times = _offsets_at_times(fetcher, topic, states, begins)
    for index, (state, begin) in enumerate(zip(states, begins, strict=True)):
        end = None if partitions == ALL else partitions[index].end_offset
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
            is_born=state.last_timestamp is not None or topic.partition_key is None,
        )


def _begin(
    partition: Partition,
    index: int,
    partitions: Partitions,
    offset: Offset | None,
    positions: Mapping[Partition, int],
) -> Offset:
    """Return where a ticket says to begin in one of its partitions."""
    if partition in positions:
        return positions[partition]
    begin = offset if partitions == ALL else partitions[index].offset
    if begin is None:
        begin = offset
    return "earliest" if begin is None else begin


def _offsets_at_times(
    fetcher: Fetcher, topic: Topic, states: Sequence[PartitionState], begins: Sequence[Offset]
) -> Mapping[Partition, int]:
    """Return the offsets of the partitions that begin at a time no later than their last one."""
    wanted: list[tuple[Partition, int]] = []
    for state, begin in zip(states, begins, strict=True):
        last = state.last_timestamp
        if isinstance(begin, TimestampOffset) and last is not None and begin.timestamp_us <= last:
            wanted.append((state.partition, begin.timestamp_us))
    return fetcher.offsets_for_timestamps(topic, wanted) if wanted else {}


def _number(state: PartitionState, offset: Offset) -> int:
    """Return the offset that `"earliest"`, `"latest"`, a time past the last one or an int means."""
    if isinstance(offset, int):
        return offset
    return state.log_start_offset if offset == "earliest" else state.next_offset
