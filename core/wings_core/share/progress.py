"""Progress of share groups: what they have finished of a topic, and what they have left longest."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wings_core.arrow_compute import pc
from wings_core.metadata.interfaces import Groups, OffsetRegistry
from wings_core.metadata.maintenance import Finished
from wings_core.model import Oldest, ShareGroup, SharePartitionState, Topic
from wings_core.partitions import Partition

PARTITIONS_AT_ONCE = 10_000
"""Partitions that are located in one look."""


def finished_by_all(
    groups: Groups,
    describe: Callable[[ShareGroup], Sequence[SharePartitionState]],
    topic: Topic,
) -> dict[Partition, Finished]:
    """Return what every group of a topic has finished from the start of each partition on.

    Accepted, or archived with its dead letter durable: a group's window begins behind it, at a
    majority of the replicas. A partition of which some group has finished nothing is left out, so
    nothing is returned of a topic without groups. Blocks for the replicas.

    Args:
        groups: Where the topic's are found.
        describe: Tells where one stands, as `Positions.describe`.
        topic: Theirs.

    Raises:
        Unavailable: No majority of the replicas answered.
        TopicNotFound: The topic was deleted.
        GroupNotFound: A group was deleted, or moved, meanwhile.
    """
    found = groups.of_topic(topic)
    starts = [{state.partition: state.start_offset for state in describe(each)} for each in found]
    uuids = frozenset(group.uuid for group in found)
    finished: dict[Partition, Finished] = {}
    for partition in starts[0] if starts else ():
        before = min(of_group.get(partition, 0) for of_group in starts)
        if before:
            finished[partition] = Finished(before, uuids)
    return finished


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


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Messages of one group on this node, since the process's start."""

    delivered: int = 0
    """To members, each time."""
    redelivered: int = 0
    """Deliveries among those that were not the first of their message."""
    accepted: int = 0
    dead_lettered: int = 0
    """Rejected, or at the delivery limit; with or without a topic of dead letters."""
