"""Subscription: the topics that a query reads, their columns, and where it reads them.

Bounds of a read are resolved to offsets of the current logs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import pyarrow as pa

from wings_client import Client, PartitionState, Topic
from wings_core.arrow_types import fields_of
from wings_core.contracts.messages import shortened
from wings_core.errors import (
    InvalidArgument,
    OffsetOutOfRange,
    SchemaMismatch,
    TopicNotFound,
    suggested,
)
from wings_core.names import TopicName
from wings_core.partitions import Partition, any_partition_value, partition_of, partition_of_value
from wings_core.times import moment_of
from wings_spark.bounds import AtTime, Bound, Position, partition_shown
from wings_spark.options import SparkReadOptions, split_pattern
from wings_spark.ranges import Range

SYSTEM_COLUMNS = ("__offset", "__timestamp")

TOPIC_COLUMN = "__topic"
"""System column of the topic's name, with `topicsPattern`: offsets alone do not identify a row."""

_SYSTEM_FIELDS = (
    pa.field("__offset", pa.int64(), nullable=False),
    pa.field("__timestamp", pa.timestamp("us", "UTC"), nullable=False),
)
_TOPIC_FIELD = pa.field(TOPIC_COLUMN, pa.string(), nullable=False)

States = Mapping[Partition, PartitionState]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a query as of now, all with one schema."""

    topics: tuple[Topic, ...]
    """Topics in order of name; may be empty for a pattern."""

    @classmethod
    def find(cls, client: Client, options: SparkReadOptions) -> Self:
        """Fetch the topics that the options name.

        Raises:
            TopicNotFound: The topic does not exist, or none matches the pattern.
            SchemaMismatch: The matching topics differ in their schemas.
        """
        if options.topic is not None:
            return cls((client.topic(options.topic),))
        assert options.topics_pattern is not None
        namespace, pattern = split_pattern(options.topics_pattern)
        found = [topic for topic in client.topics(str(namespace)) if pattern.fullmatch(topic.id)]
        if not found:
            raise TopicNotFound(
                shortened(
                    f"option 'topicsPattern': no topic of {namespace} matches {pattern.pattern!r}"
                )
            )
        for topic in found[1:]:
            _check_alike(found[0], topic)
        return cls(tuple(found))

    @classmethod
    def checked(cls, client: Client, options: SparkReadOptions) -> Self:
        """Fetch the topics, and have the server validate the user's filter.

        Raises:
            InvalidFilter: The option `filter` is not one boolean expression over their columns.
            WingsError: See `find`.
        """
        found = cls.find(client, options)
        if options.filter is not None:
            # Here, not in the tasks, where the error would be late and repeated. Any partition
            # will do.
            topic = found.topics[0]
            value = any_partition_value(topic.key_type)
            client.scan_tickets(topic, value, offset="latest", filter=options.filter)
        return found

    def check_bounds(self, options: SparkReadOptions) -> None:
        """Check that the query reads the topic of every position.

        Raises:
            InvalidArgument: A position is in another topic, and would silently have no effect.
        """
        names = {TopicName.parse(topic.name) for topic in self.topics}
        for option, bound in (
            ("startingOffsets", options.starting_offsets),
            ("endingOffsets", options.ending_offsets),
        ):
            for name in bound.named if bound is not None else ():
                if name not in names:
                    raise InvalidArgument(
                        shortened(f"option {option!r}: topic {name} is not one that is read")
                    )

    def schema(self, options: SparkReadOptions) -> pa.Schema:
        """Return the columns of a query whose user gives no schema.

        Raises:
            InvalidArgument: The option `columns` names a column that the topics lack.
        """
        fields = {field.name: field for field in fields_of(self.all_columns(options))}
        names = [name for name in fields if not name.startswith("__")]
        if options.columns is not None:
            names = list(options.columns)
        if options.include_system_columns:
            names += [name for name in fields if name.startswith("__") and name not in names]
        for name in names:
            if name not in fields:
                hint = suggested(name, fields)
                raise InvalidArgument(
                    shortened(f"option 'columns': {self.shown} has no column {name!r:.80}{hint}"),
                    column=name,
                )
        return pa.schema([fields[name] for name in names])

    def all_columns(self, options: SparkReadOptions) -> pa.Schema:
        """Return the columns that a query may ask for."""
        fields = [*fields_of(self.topics[0].schema), *_SYSTEM_FIELDS]
        if options.topics_pattern is not None:
            fields.append(_TOPIC_FIELD)
        return pa.schema(fields)

    @property
    def shown(self) -> str:
        """The topics for a message."""
        return f"topic {self.topics[0].name}"


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
    positions = {partition: named.get(partition, bound.default or default) for partition in states}
    times = {each.timestamp for each in positions.values() if isinstance(each, AtTime)}
    offsets = {time: dict(_offsets_at(client, topic, time)) for time in times}
    found: dict[Partition, int] = {}
    for partition, state in states.items():
        position = positions[partition]
        if isinstance(position, AtTime):
            offset = offsets[position.timestamp].get(partition, state.next_offset)
            # The log's end may have moved on since the states were read.
            found[partition] = min(offset, state.next_offset)
        elif isinstance(position, int):
            found[partition] = position
        else:
            earliest = position == "earliest"
            found[partition] = state.log_start_offset if earliest else state.next_offset
    return found


def _check_alike(one: Topic, other: Topic) -> None:
    if one.schema.equals(other.schema):
        return
    ours, theirs = fields_of(one.schema), fields_of(other.schema)
    column = next((a.name for a, b in zip(ours, theirs, strict=False) if not a.equals(b)), None)
    if column is None:
        column = max(ours, theirs, key=len)[min(len(ours), len(theirs))].name
    raise SchemaMismatch(
        shortened(
            "option 'topicsPattern': topics must have one schema, but "
            f"{TopicName.parse(one.name).topic} and {TopicName.parse(other.name).topic} differ "
            f"in column {column!r:.80}"
        ),
        column=column,
    )


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


def _offsets_at(client: Client, topic: Topic, time: int) -> Iterator[tuple[Partition, int]]:
    """Yield the offsets at a time in all partitions, with one call."""
    _, tickets = client.scan_tickets(topic, offset=moment_of(time))
    for ticket in tickets:
        assert isinstance(ticket.offset, int)
        yield partition_of(ticket.partition, topic.key_type), ticket.offset
