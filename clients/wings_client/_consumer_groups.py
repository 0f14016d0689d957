"""Consumer groups as seen from outside: which there are, their members and lag, and a reset."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from wings_client._admin import AdminCalls, TopicRef, name_of
from wings_client._arguments import build, checked, wire_offset, wire_partition
from wings_client._model import Moment, PartitionValue, parsed
from wings_core.contracts.actions import LIST_MAX
from wings_core.contracts.consumer_groups import DescribeGroup, ListConsumerGroups, ResetGroup
from wings_core.contracts.totals import CONSUMERS_MAX, ConsumerLag, ListConsumers
from wings_core.partitions import JsonScalar


@dataclass(frozen=True, slots=True)
class ConsumerGroupSummary:
    """A consumer group in a list."""

    consumer: str
    members: int
    topics: tuple[str, ...]
    """Full names of topics that its members read, or that it has committed offsets of."""


@dataclass(frozen=True, slots=True)
class AssignedSlots:
    """Slots of a topic that a member reads."""

    topic: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """A live member of a consumer group."""

    member: str
    instance: str | None
    """The name that survives restarts; None: it has none."""
    member_epoch: int
    assignment: tuple[AssignedSlots, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition that a consumer group reads."""

    topic: str
    partition: JsonScalar
    member: str | None
    """The member that reads it; None: nobody does."""
    offset: int | None
    """The next offset to read; None: nothing was committed."""
    log_end_offset: int
    lag: int
    """Messages that are kept and not committed."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupState:
    """A consumer group: its members, and all partitions of their topics."""

    consumer: str
    members: tuple[ConsumerGroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        """Messages that are kept and not committed, in all partitions."""
        return sum(partition.lag for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class ConsumerTopic:
    """How far a named consumer is behind in a topic."""

    topic: str
    partitions: int
    lag: int
    """Messages that are kept and not committed."""
    committed_at: Moment


@dataclass(frozen=True, slots=True)
class ConsumerPartition:
    """How far a named consumer is behind in a partition."""

    topic: str
    partition: JsonScalar
    offset: int
    """The next offset to read."""
    next_offset: int
    """The next offset to be assigned."""
    lag: int
    committed_at: Moment


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A named consumer, and how far it is behind."""

    consumer: str
    topics: tuple[ConsumerTopic, ...]
    partitions: tuple[ConsumerPartition, ...] = ()
    """Partitions by lag, the largest first; none in a list of consumers."""

    @property
    def lag(self) -> int:
        """Messages that are kept and not committed, in all topics."""
        return sum(topic.lag for topic in self.topics)


@checked
class ConsumerGroupCalls(AdminCalls):
    """The calls of `Client` on named consumers and consumer groups."""

    def consumers(self) -> list[ConsumerState]:
        """Return the named consumers that committed offsets, by name, with their lag by topic."""
        found: list[ConsumerState] = []
        while True:
            body = ListConsumers(after=found[-1].consumer if found else "", limit=CONSUMERS_MAX)
            page = self._act("list-consumers", body)
            found += [parsed(ConsumerState, each) for each in page]
            if len(page) < CONSUMERS_MAX:
                return found

    def consumer_lag(
        self, consumer: str, topic: TopicRef | None = None, *, limit: int = LIST_MAX
    ) -> ConsumerState:
        """Return how far a named consumer is behind, by topic and by partition.

        Args:
            consumer: The consumer's name; one without offsets has no topics.
            topic: Look at this topic alone; None: at all.
            limit: Most partitions to return, up to 10,000: those with the most lag.

        Raises:
            TopicNotFound: There is no such topic.
        """
        body = build(
            ConsumerLag,
            "consumer_lag",
            consumer=consumer,
            topic=None if topic is None else name_of(topic),
            limit=limit,
        )
        return parsed(ConsumerState, self._act("consumer-lag", body))

    def consumer_groups(self) -> list[ConsumerGroupSummary]:
        """Return the consumer groups of topics that may be read, by name."""
        found: list[ConsumerGroupSummary] = []
        while True:
            after = found[-1].consumer if found else None
            page = self._act("group-list", ListConsumerGroups(after=after))
            if not page:
                return found
            found += [parsed(ConsumerGroupSummary, each) for each in page]

    def consumer_group(self, name: str) -> ConsumerGroupState:
        """Return a consumer group: its members, offsets and lag.

        Args:
            name: The group's, which is that of its consumers.

        Raises:
            GroupNotFound: There is none, or none of a topic that may be read.
        """
        partitions: list[GroupPartition] = []
        members: tuple[ConsumerGroupMember, ...] = ()
        after: str | None = None
        while True:
            body = build(DescribeGroup, "consumer_group", consumer=name, after=after)
            page = self._act("group-describe", body)
            if after is None:
                members = tuple(parsed(ConsumerGroupMember, each) for each in page["members"])
            partitions += [parsed(GroupPartition, each) for each in page["partitions"]]
            after = page["next"]
            if after is None:
                return ConsumerGroupState(name, members, tuple(partitions))

    def reset_consumer_group(
        self, name: str, topic: TopicRef, to: str | datetime | Mapping[PartitionValue, int]
    ) -> dict[JsonScalar, int]:
        """Set where a consumer group reads on in a topic, while it has no members.

        Args:
            name: The group's.
            topic: The topic.
            to: `"earliest"`, `"latest"`, a time, or an offset for each partition named.

        Returns:
            The next offset to read, by partition value.

        Raises:
            FencedMember: The group has members: stop them first.
            GroupNotFound: There is no such group.
            OffsetOutOfRange: An offset is past the end of its log.
        """
        where: object
        if isinstance(to, Mapping):
            where = [
                {"partition": wire_partition(value), "offset": offset}
                for value, offset in to.items()
            ]
        else:
            where = wire_offset(to)
        body = build(
            ResetGroup, "reset_consumer_group", consumer=name, topic=name_of(topic), to=where
        )
        found = self._act("group-reset", body)["offsets"]
        return {each["partition"]: each["offset"] for each in found}
