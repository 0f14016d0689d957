"""Acceptance: what all share groups of a topic have finished, so that it may go."""

from collections.abc import Callable, Sequence

from wings_core.metadata.interfaces import Groups
from wings_core.metadata.maintenance import Finished
from wings_core.model import ShareGroup, SharePartitionState, Topic
from wings_core.partitions import Partition


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
        describe: Tells where one stands, as `Coordinator.describe`.
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
