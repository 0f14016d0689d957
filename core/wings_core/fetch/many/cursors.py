"""Cursors: where the read of each partition begins and ends, as a ticket or command says."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from wings_core.contracts.many import ALL, PartitionEntry, Partitions
from wings_core.contracts.offsets import Offset, TimestampOffset
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
    default = PartitionEntry(None)
    for index, state in enumerate(states):
        entry = default if partitions == ALL else partitions[index]
        begin = offset if entry.offset is None else entry.offset
        if state.partition in positions:
            begin = positions[state.partition]
        if begin is None:
            begin = "earliest"
        end = entry.end_offset if entry.end_offset is not None else end_offset
        start = _number(fetcher, topic, state, begin)
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


def _number(fetcher: Fetcher, topic: Topic, state: PartitionState, offset: Offset) -> int:
    """Return the offset that `"earliest"`, `"latest"`, a time or an int stands for."""
    if isinstance(offset, int):
        return offset
    if offset == "earliest":
        return state.log_start_offset
    if isinstance(offset, TimestampOffset):
        last = state.last_timestamp
        if last is not None and offset.timestamp_us <= last:
            return fetcher.offset_for_timestamp(topic, state.partition, offset.timestamp_us)
    return state.next_offset
