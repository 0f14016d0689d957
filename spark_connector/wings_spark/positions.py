"""Positions: the bounds of a read, resolved to offsets of the current log."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from wings_client import Client, PartitionState, Topic
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of, partition_of_value
from wings_core.times import moment_of
from wings_spark.bounds import AtTime, Bound, Position, partition_shown
from wings_spark.options import SparkReadOptions
from wings_spark.ranges import Range
from wings_spark.subscription import Subscription

States = Mapping[Partition, PartitionState]


def states_of(client: Client, topic: Topic) -> dict[Partition, PartitionState]:
    """Return the states of all partitions of a topic, by value."""
    return {partition_of_value(state.partition): state for state in client.partitions(topic)}


def states_of_all(
    client: Client, subscription: Subscription, options: SparkReadOptions
) -> Iterator[tuple[Topic, States]]:
    """Yield the topics of a query, each with the states of its partitions.

    A deleted topic of a `topicsPattern` is left out.

    Raises:
        TopicNotFound: The query's only topic was deleted.
    """
    for topic in subscription.topics:
        try:
            states = states_of(client, topic)
        except TopicNotFound:
            if options.topics_pattern is None:
                raise
        else:
            yield topic, states


def batch_ranges(
    client: Client, topic: Topic, states: States, options: SparkReadOptions
) -> list[Range]:
    """Return the ranges of a batch read of a topic, one for each partition.

    Raises:
        InvalidArgument: A position is past the log's end, or its partition does not exist.
        OffsetOutOfRange: A start is below the log's start, and `failOnDataLoss` holds.
    """
    bound = options.start(Bound("earliest"))
    named = bound.of_topic(TopicName.parse(topic.name), topic.key_type)
    starts = resolve(client, topic, states, bound, "earliest")
    ends = resolve(client, topic, states, options.end(Bound("latest")), "latest")
    return [
        what_is_kept(
            Range(
                topic.name,
                topic.uuid,
                partition,
                starts[partition],
                ends[partition],
                clamps=named.get(partition, bound.default or "earliest") == "earliest",
            ),
            state.log_start_offset,
            options,
        )
        for partition, state in states.items()
    ]


def what_is_kept(wanted: Range, log_start_offset: int, options: SparkReadOptions) -> Range:
    """Return the part of a range that the log still holds, perhaps empty.

    Args:
        wanted: The requested range.
        log_start_offset: The first offset that the log holds.
        options: Options, of which `failOnDataLoss` is used.

    Raises:
        OffsetOutOfRange: A part was deleted, and `failOnDataLoss` holds.
    """
    start_offset = wanted.start_offset
    if log_start_offset <= start_offset <= wanted.end_offset:
        return wanted
    if start_offset < min(log_start_offset, wanted.end_offset):
        if options.fail_on_data_loss:
            raise data_loss(wanted.topic, wanted.partition, start_offset, log_start_offset)
        start_offset = log_start_offset
    return replace(wanted, start_offset=min(start_offset, wanted.end_offset))


def data_loss(
    topic: str, partition: Partition, start_offset: int, log_start_offset: int
) -> OffsetOutOfRange:
    """Return the error for messages that were deleted before they were read."""
    return OffsetOutOfRange(
        shortened(
            f"{partition_shown(partition)} of {topic} starts at offset {log_start_offset}: "
            f"messages from {start_offset} on are gone and were not read. To go on with those "
            "that are kept, set the option 'failOnDataLoss' to false"
        ),
        log_start_offset=log_start_offset,
    )


def topic_replaced(topic: str) -> OffsetOutOfRange:
    """Return the error for a topic that was deleted, or replaced by another with its name."""
    return OffsetOutOfRange(
        shortened(
            f"topic {topic} was deleted since the query read it, and its messages are gone. To "
            "go on with the topic of that name now, set the option 'failOnDataLoss' to false"
        )
    )


def resolve(
    client: Client,
    topic: Topic,
    states: States,
    bound: Bound,
    default: Literal["earliest", "latest"],
) -> dict[Partition, int]:
    """Return the offset of a bound in each existing partition.

    Args:
        client: Client that resolves times.
        topic: The topic.
        states: States of the topic's partitions.
        bound: The bound, as given by the user.
        default: Position in partitions that the bound does not name.

    Raises:
        InvalidArgument: An offset is past the log's end, or its partition does not exist.
    """
    option = "startingOffsets" if default == "earliest" else "endingOffsets"
    named = bound.of_topic(TopicName.parse(topic.name), topic.key_type)
    for partition, position in named.items():
        _check_there(option, topic, partition, position, states)
    times = _Times(client, topic)
    found: dict[Partition, int] = {}
    for partition, state in states.items():
        position = named.get(partition, bound.default or default)
        if isinstance(position, AtTime):
            # The log's end may have moved on since the states were read.
            found[partition] = min(times.offset(position, partition, state), state.next_offset)
        elif isinstance(position, int):
            found[partition] = position
        else:
            earliest = position == "earliest"
            found[partition] = state.log_start_offset if earliest else state.next_offset
    return found


def _check_there(
    option: str, topic: Topic, partition: Partition, position: Position, states: States
) -> None:
    state = states.get(partition)
    if not isinstance(position, int) or position <= (state.next_offset if state else 0):
        return
    end = f"ends at {state.next_offset}" if state else "has no messages yet"
    raise InvalidArgument(
        shortened(
            f"option {option!r}: offset {position} is past the log's end: "
            f"{partition_shown(partition)} of {topic.name} {end}"
        )
    )


class _Times:
    """Resolver of times to offsets, with one call for each time, for all partitions."""

    def __init__(self, client: Client, topic: Topic) -> None:
        self._client = client
        self._topic = topic
        self._found: dict[int, dict[Partition, int]] = {}

    def offset(self, time: AtTime, partition: Partition, state: PartitionState) -> int:
        offsets = self._found.get(time.timestamp)
        if offsets is None:
            offsets = self._found[time.timestamp] = dict(self._ask(time))
        return offsets.get(partition, state.next_offset)

    def _ask(self, time: AtTime) -> Iterator[tuple[Partition, int]]:
        moment = moment_of(time.timestamp)
        _, tickets = self._client.scan_tickets(self._topic, offset=moment)
        for ticket in tickets:
            assert isinstance(ticket.offset, int)
            yield partition_of(ticket.partition, self._topic.key_type), ticket.offset
