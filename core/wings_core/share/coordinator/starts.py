"""Starts: what is finished of each partition of a group that begins at a position."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from wings_core.contracts.offsets import TimestampOffset
from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, Topic
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange
from wings_core.share.quorum.votes import Known

Position = int | Literal["latest", "earliest"] | TimestampOffset
"""Where a group begins: an offset, an end of the log, or the first message at or after a time."""

FindOffset = Callable[[Topic, Partition, int], int]
"""Returns the offset of the first message at or after a time, in microseconds since the epoch; as
`Fetcher.offset_for_timestamp`."""

Finished = Mapping[Partition, Sequence[OffsetRange]]
"""By partition, what of it is finished; of one that is not named, nothing."""


class Starts:
    """Finds where groups begin.

    Args:
        registry: The log's index.
        find_offset: None: the registry's, which finds the page, and not the row of a merged one.
    """

    def __init__(self, registry: OffsetRegistry, find_offset: FindOffset | None) -> None:
        self._registry = registry
        self._find_offset = find_offset or self._in_registry

    def of(self, topic: Topic, to: Position) -> Finished:
        """Return what is finished where a group begins at a position of every partition there is.

        Raises:
            OffsetOutOfRange: The log has no such offset.
        """
        states = self._registry.partition_states(topic.uuid)
        return {state.partition: self._before(topic, to, state) for state in states}

    def of_one(self, topic: Topic, to: Position, partition: Partition) -> list[OffsetRange]:
        """Return what is finished where a group begins at a position of one partition.

        Raises:
            InvalidArgument: Nothing was ever written to it.
            OffsetOutOfRange: It has no such offset.
        """
        state = self._registry.partition_state(topic.uuid, partition)
        if state.next_offset == 0:
            raise InvalidArgument(f"nothing was written to partition {partition:.80} yet")
        return self._before(topic, to, state)

    def _before(self, topic: Topic, to: Position, state: PartitionState) -> list[OffsetRange]:
        first, end = state.log_start_offset, state.next_offset
        if isinstance(to, TimestampOffset):
            start = self._find_offset(topic, state.partition, to.timestamp_us)
        elif isinstance(to, int):
            if not first <= to <= end:
                raise OffsetOutOfRange(
                    f"offset {to} is not in [{first}, {end}] of partition {state.partition:.80}",
                    log_start_offset=first,
                )
            start = to
        else:
            start = end if to == "latest" else first
        return [OffsetRange(0, start - 1)] if start else []

    def _in_registry(self, topic: Topic, partition: Partition, timestamp: int) -> int:
        return self._registry.offset_for_timestamp(topic.uuid, partition, timestamp)


def finished_of(known: Known) -> list[OffsetRange]:
    """Return what is finished of a partition as replicas know it."""
    below = [OffsetRange(0, known.start_offset - 1)] if known.start_offset else []
    return [*below, *known.finished]
