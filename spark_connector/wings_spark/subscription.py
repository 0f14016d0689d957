"""Subscription: the topics that a query reads, and their columns."""

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from wings_client import Client, Topic
from wings_core.arrow_types import fields_of
from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, SchemaMismatch, TopicNotFound, suggested
from wings_core.names import TopicName
from wings_core.partitions import any_partition_value
from wings_spark.options import SparkReadOptions, split_pattern

SYSTEM_COLUMNS = ("__offset", "__timestamp")
TOPIC_COLUMN = "__topic"
"""System column of the topic's name, with `topicsPattern`: offsets alone do not identify a row."""

_SYSTEM_FIELDS = (
    pa.field("__offset", pa.int64(), nullable=False),
    pa.field("__timestamp", pa.timestamp("us", "UTC"), nullable=False),
)
_TOPIC_FIELD = pa.field(TOPIC_COLUMN, pa.string(), nullable=False)


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
