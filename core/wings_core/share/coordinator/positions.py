"""Positions: where groups stand in each partition, and where they begin."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from wings_core.contracts.reads import TimestampOffset
from wings_core.errors import InvalidArgument, OffsetOutOfRange, WingsError
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import PartitionState, ShareGroup, SharePartitionState, Topic
from wings_core.partitions import Partition
from wings_core.share.coordinator.partitions import READ_PARTITIONS_MAX
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.quorum.quorum import HoldQuorum, Runner
from wings_core.share.quorum.votes import UNTOUCHED, KnownPartition
from wings_core.share.replica.store import StoredPartition

Position = int | Literal["latest", "earliest"] | TimestampOffset
"""Where a group begins: an offset, an end of the log, or the first message at or after a time; of a
negative number, so many before the end."""

FindOffsets = Callable[[Topic, Sequence[tuple[Partition, int]]], Mapping[Partition, int]]
"""Returns the offsets of the first messages at or after times, in microseconds since the epoch; as
`Fetcher.offsets_for_timestamps`."""

Finished = Mapping[Partition, Sequence[OffsetRange]]
"""Finished ranges by partition; nothing is finished of one that is not named."""


class Positions:
    """Reads and sets where groups stand, at a majority of the replicas; from any thread.

    Args:
        refuse: Raises `Unavailable` where no group can be served.
        check: Refuses a group that cannot be served; returns it as it is now.
        registry: The log's index.
        find_offsets: Finds the first messages at or after times.
        quorum: The majority of the replicas.
        runner: Asks it.
    """

    def __init__(
        self,
        refuse: Callable[[], None],
        check: Callable[[ShareGroup], ShareGroup],
        registry: OffsetRegistry,
        find_offsets: FindOffsets,
        quorum: HoldQuorum,
        runner: Runner,
    ) -> None:
        self._refuse = refuse
        self._check = check
        self._registry = registry
        self._find_offsets = find_offsets
        self._quorum = quorum
        self._runner = runner

    def create(self, group: ShareGroup, to: Position | None = None) -> None:
        """Put a new group at a position of every partition there is; blocks for the replicas.

        Call it before the group is made known; again is harmless until then.

        Args:
            group: The new group.
            to: Where it begins; None: where its configuration says.

        Raises:
            Unavailable: No majority of the replicas answered.
            OffsetOutOfRange: There is no such offset.
            TopicNotFound: The topic was deleted.
        """
        self._refuse()
        logs = self._registry.partition_states(group.topic.uuid)
        self._begin(
            group, self._before(group.topic, group.config.start if to is None else to, logs)
        )

    def create_moved(
        self, group: ShareGroup, anew: ShareGroup, to: Position, partition: Partition
    ) -> None:
        """Put a new group at a position of one partition, and in the others where another stands.

        Blocks for the replicas. Call it before the new group is made known in place of the other.

        Args:
            group: The group whose place in the other partitions is taken.
            anew: The new group, of the same topic.
            to: Where it begins in the partition.
            partition: The partition.

        Raises:
            Unavailable: No majority of the replicas answered.
            OffsetOutOfRange: There is no such offset.
            InvalidArgument: Nothing was written to the partition yet.
            TopicNotFound: The topic was deleted.
        """
        self._refuse()
        logs = self._registry.partition_states(group.topic.uuid)
        moved = [state for state in logs if state.partition == partition and state.next_offset]
        if not moved:
            raise InvalidArgument(f"nothing was written to partition {partition:.80} yet")
        finished = self._before(group.topic, to, moved)
        others = [state.partition for state in logs if state.partition != partition]
        for each, known in self._read(group, others).items():
            below = [OffsetRange(0, known.start_offset - 1)] if known.start_offset else []
            finished[each] = [*below, *known.finished]
        self._begin(anew, finished)

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """Return where a group stands in each partition written to, by value.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        logs = self._registry.partition_states(self._check(group).topic.uuid)
        known = self._read(group, [state.partition for state in logs])
        return [_describe(state, known[state.partition]) for state in logs]

    def stored(self, group: ShareGroup) -> list[StoredPartition]:
        """Return what a majority of the replicas keeps of a group, of each partition written to.

        Blocks for the replicas.

        Raises:
            Unavailable: No majority of the replicas answered.
            TopicNotFound: The topic was deleted.
        """
        logs = self._registry.partition_states(self._check(group).topic.uuid)
        return [
            StoredPartition(
                ShareKey.of(group, partition),
                known.start_offset,
                [(each.first, each.last, 0) for each in known.finished],
                [(each.first, each.last, each.count) for each in known.counts],
            )
            for partition, known in self._read(group, [each.partition for each in logs]).items()
        ]

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

    def _read(
        self, group: ShareGroup, partitions: Sequence[Partition]
    ) -> dict[Partition, KnownPartition]:
        """Return what a majority knows of partitions, in requests of a bounded number each."""
        known: dict[Partition, KnownPartition] = {}
        for at in range(0, len(partitions), READ_PARTITIONS_MAX):
            some = partitions[at : at + READ_PARTITIONS_MAX]
            known |= self._runner.run(self._quorum.read(group.uuid, group.topic.uuid, some))
        return known

    def _begin(self, group: ShareGroup, finished: Finished) -> None:
        """Make a group that is not known yet begin where so much is finished of partitions."""
        begun = [(partition, ranges) for partition, ranges in finished.items() if ranges]
        for at in range(0, len(begun), READ_PARTITIONS_MAX):
            outcomes = self._runner.run_all(
                [
                    self._quorum.repair(ShareKey.of(group, partition), ranges)
                    for partition, ranges in begun[at : at + READ_PARTITIONS_MAX]
                ]
            )
            for outcome in outcomes:
                if isinstance(outcome, WingsError):
                    raise outcome


def _start(to: int | Literal["latest", "earliest"], state: PartitionState) -> int:
    first, end = state.log_start_offset, state.next_offset
    if not isinstance(to, int):
        return end if to == "latest" else first
    if to < 0:
        return max(first, end + to)
    if not first <= to <= end:
        raise OffsetOutOfRange(
            f"offset {to} is not in [{first}, {end}] of partition {state.partition:.80}",
            log_start_offset=first,
        )
    return to


def _describe(log: PartitionState, known: KnownPartition) -> SharePartitionState:
    if known is UNTOUCHED:
        start, end = log.log_start_offset, log.next_offset
        return SharePartitionState(log.partition, start, 0, end - start)
    start = max(known.start_offset, log.log_start_offset)
    above = sum(
        tomb.last - max(tomb.first, start) + 1 for tomb in known.finished if tomb.last >= start
    )
    lag = max(0, log.next_offset - start - above)
    return SharePartitionState(log.partition, start, known.in_flight, lag)
