"""Oldest: the message that a group has left unfinished for longest."""

from collections.abc import Iterable

import pyarrow.compute as pc

from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Oldest, ShareGroup, SharePartitionState

PARTITIONS_AT_ONCE = 10_000
"""Partitions that are located in one look."""


def oldest_unfinished(
    registry: OffsetRegistry, group: ShareGroup, states: Iterable[SharePartitionState]
) -> Oldest | None:
    """Return the oldest message that a group has not finished; None: it has finished all.

    Raises:
        TopicNotFound: The topic was deleted.
    """
    left = [(state.partition, state.start_offset) for state in states if state.lag]
    found: list[Oldest] = []
    while left:
        some = left[:PARTITIONS_AT_ONCE]
        located = registry.locate_slices(group.topic.uuid, some, 1, PARTITIONS_AT_ONCE)
        slices = located.slices
        if slices.num_rows:
            times = pc.coalesce(slices["first_timestamp"], slices["timestamp"])
            first = pc.index(times, pc.min(times)).as_py()
            partition, offset = some[slices["place"][first].as_py()]
            start = slices["start_offset"][first].as_py()
            found.append(Oldest(partition, max(offset, start), times[first].as_py()))
        left = left[max(1, len(located)) :]
    return min(found, key=lambda each: each.timestamp, default=None)
