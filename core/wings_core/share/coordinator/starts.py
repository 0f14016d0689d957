"""Starts: what is finished of each partition of a group that begins at a position."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument, OffsetOutOfRange
from wings_core.metadata.interfaces import POSITIONS_MAX, OffsetRegistry
from wings_core.model import PartitionState, Topic
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange
from wings_core.share.quorum.votes import KnownPartition

Position = int | Literal["latest", "earliest"] | TimestampOffset
"""Where a group begins: an offset, an end of the log, or the first message at or after a time."""

FindOffsets = Callable[[Topic, Sequence[tuple[Partition, int]]], Mapping[Partition, int]]
"""Returns the offsets of the first messages at or after times, in microseconds since the epoch; as
`Fetcher.offsets_for_timestamps`."""

Finished = Mapping[Partition, Sequence[OffsetRange]]
"""Finished ranges by partition; nothing is finished of one that is not named."""


class Starts:
    """Finds where groups begin.

    Args:
        registry: The log's index.
        find_offsets: None: the registry's, which find the page, and not the row of a merged one.
    """

    def __init__(self, registry: OffsetRegistry, find_offsets: FindOffsets | None) -> None:
        self._registry = registry
        self._find_offsets = find_offsets or self._in_registry

    def of(self, topic: Topic, to: Position) -> Finished:
        """Return what is finished where a group begins at a position of every partition there is.

        Raises:
            OffsetOutOfRange: The log has no such offset.
        """
        return self._before(topic, to, self._registry.partition_states(topic.uuid))

    def of_one(self, topic: Topic, to: Position, partition: Partition) -> list[OffsetRange]:
        """Return what is finished where a group begins at a position of one partition.

        Raises:
            InvalidArgument: Nothing was ever written to it.
            OffsetOutOfRange: It has no such offset.
        """
        state = self._registry.partition_state(topic.uuid, partition)
        if state.next_offset == 0:
            raise InvalidArgument(f"nothing was written to partition {partition:.80} yet")
        return self._before(topic, to, [state])[partition]

    def _before(
        self, topic: Topic, to: Position, states: Sequence[PartitionState]
    ) -> dict[Partition, list[OffsetRange]]:
        if isinstance(to, TimestampOffset):
            starts = self._find_offsets(
                topic, [(state.partition, to.timestamp_us) for state in states]
            )
        else:
            starts = {state.partition: _start(to, state) for state in states}
        return {
            partition: [OffsetRange(0, start - 1)] if start else []
            for partition, start in starts.items()
        }

    def _in_registry(
        self, topic: Topic, positions: Sequence[tuple[Partition, int]]
    ) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for first in range(0, len(positions), POSITIONS_MAX):
            some = positions[first : first + POSITIONS_MAX]
            offsets = self._registry.offsets_for_timestamps(topic.uuid, some)
            found |= zip((partition for partition, _ in some), offsets, strict=True)
        return found


def _start(to: int | Literal["latest", "earliest"], state: PartitionState) -> int:
    first, end = state.log_start_offset, state.next_offset
    if not isinstance(to, int):
        return end if to == "latest" else first
    if not first <= to <= end:
        raise OffsetOutOfRange(
            f"offset {to} is not in [{first}, {end}] of partition {state.partition:.80}",
            log_start_offset=first,
        )
    return to


def finished_of(known: KnownPartition) -> list[OffsetRange]:
    """Return what is finished of a partition as replicas know it."""
    below = [OffsetRange(0, known.start_offset - 1)] if known.start_offset else []
    return [*below, *known.finished]
