"""Topics, namespaces and offsets: the calls that are one action each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from wings_client._arguments import (
    OffsetValue,
    TimeValue,
    build,
    checked,
    wire_partition,
    wire_time,
)
from wings_client._model import (
    ConsumerOffset,
    Namespace,
    PartitionState,
    PartitionValue,
    Topic,
    parsed,
)
from wings_client._read_options import OffsetsValue, PartitionsValue, place, starts
from wings_client._schemas import SchemaLike, schema_of
from wings_client._transport import Transport
from wings_core.contracts.actions import (
    ActionBody,
    AlterTopic,
    ColumnSpec,
    CreateTopic,
    DeleteOffsets,
    GetOffsets,
    ListNamespaces,
    ListTopics,
    NamespaceBody,
    OffsetForTimestamp,
    SchemaChangeSpec,
    SchemaSpec,
    TopicBody,
)
from wings_core.contracts.commits import CommitOffsets
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL
from wings_core.errors import InvalidTicket, OffsetOutOfRange
from wings_core.partitions import JsonScalar
from wings_core.schemas import FieldSpec, schema_to_fields, schema_to_ipc

Fields = Mapping[str, str]
"""Columns by name and Arrow's name of their type: `{"key": "string", "at": "timestamp[us]"}`.

A type ends in ` not null` where the column may not be null.
"""

TopicRef = str | Topic
"""A topic: its full name, a bare id for one of the default namespace, or what a call returned."""

_Begun = TypeVar("_Begun")


@checked
class AdminCalls:
    """The calls of `Client` on topics, namespaces and offsets."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create_topic(
        self,
        topic: str,
        schema: SchemaLike,
        partition_key: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic.

        Args:
            topic: Its full name, or an id for the default namespace.
            schema: Schema of its messages: an Arrow schema, columns by name and type (Arrow's name
                of it, or Python's, Arrow's, Polars' or pandas' own), a pydantic model, a dataclass,
                a TypedDict or a NamedTuple, a data frame or the schema of one. Metadata is dropped;
                dictionary, run-end, extension and view types become the plain types that they stand
                for. What Python's annotation says is never None may not be null.
            partition_key: The column whose value says which partition a row belongs to: of an
                integer, string, binary or bool type. None: one partition.
            config: The topic's configuration, such as `{"batch_bytes_max": 1048576}`.
            if_not_exists: Return the existing topic of this name if its schema and key are the
                same.

        Raises:
            InvalidSchema: A topic may not have this schema; fact `column`.
            AlreadyExists: The name is taken (with `if_not_exists`: by a different topic).
            NamespaceNotFound: There is no such namespace.
            InvalidArgument: No schema can be made of `schema`.
        """
        body = build(
            CreateTopic,
            "create_topic",
            topic=topic,
            partition_key=partition_key,
            config=None if config is None else dict(config),
            if_not_exists=if_not_exists,
            **_schema_keys(schema),
        )
        return Topic.from_json(self._act("create-topic", body, repeatable=if_not_exists))

    def topic(self, topic: TopicRef) -> Topic:
        """Return a topic's description: UUID, schema, key and configuration.

        Raises:
            TopicNotFound: There is none of this name.
        """
        body = build(TopicBody, "topic", topic=name_of(topic))
        return Topic.from_json(self._act("describe-topic", body))

    def topics(self, namespace: str | None = None) -> list[Topic]:
        """Return the topics of a namespace (by its full name), or of all, by name.

        Raises:
            NamespaceNotFound: There is no such namespace.
        """
        body = build(ListTopics, "topics", namespace=namespace)
        return [Topic.from_json(found) for found in self._act("list-topics", body)]

    def alter_topic(self, topic: TopicRef, config: Mapping[str, Any]) -> Topic:
        """Change the keys of a topic's configuration that are given, None to their defaults.

        A topic whose `table` becomes None loses its table with the server's next maintenance; the
        rows stay in the log.

        Raises:
            TopicNotFound: There is none of this name.
        """
        body = build(AlterTopic, "alter_topic", topic=name_of(topic), config=dict(config))
        return Topic.from_json(self._act("alter-topic", body))

    def alter_schema(
        self,
        topic: TopicRef,
        *,
        add: SchemaLike | None = None,
        widen: SchemaLike | None = None,
        nullable: Sequence[str] = (),
    ) -> Topic:
        """Let a topic's schema grow; its rows stay as they are.

        Readers get the new columns, null in the rows before, and wider types; `schema_version`
        asks for an earlier version. Producers may go on to push in any version. What is there
        already, as it is, changes nothing.

        Args:
            topic: The topic.
            add: Columns to add at the end, which may be null.
            widen: Columns that get a wider type: integers and floats within their kind, decimals
                in precision.
            nullable: Columns that may be null from now on.

        Returns:
            The topic, with its last schema and the version of it.

        Raises:
            TopicNotFound: There is none of this name.
            InvalidSchema: The schema cannot change so; fact `column`.
        """
        body = build(
            AlterTopic,
            "alter_schema",
            topic=name_of(topic),
            schema=SchemaChangeSpec(
                add=_column_specs(add, "add"),
                widen=_column_specs(widen, "widen"),
                nullable=tuple(nullable),
            ),
        )
        return Topic.from_json(self._act("alter-topic", body))

    def delete_topic(self, topic: TopicRef) -> Topic:
        """Delete a topic with all its messages; returns its last description.

        Raises:
            TopicNotFound: There is none of this name.
        """
        body = build(TopicBody, "delete_topic", topic=name_of(topic))
        return Topic.from_json(self._act("delete-topic", body, repeatable=False))

    def create_namespace(self, namespace: str) -> Namespace:
        """Create a namespace, and its tenant if that does not exist.

        Raises:
            AlreadyExists: The name is taken.
        """
        body = build(NamespaceBody, "create_namespace", namespace=namespace)
        return parsed(Namespace, self._act("create-namespace", body, repeatable=False))

    def namespaces(self) -> list[Namespace]:
        """Return all namespaces, by name."""
        found = self._act("list-namespaces", ListNamespaces())
        return [parsed(Namespace, each) for each in found]

    def delete_namespace(self, namespace: str) -> Namespace:
        """Delete a namespace that has no topics.

        Raises:
            NamespaceNotFound: There is none of this name.
            NamespaceNotEmpty: It has topics.
        """
        body = build(NamespaceBody, "delete_namespace", namespace=namespace)
        return parsed(Namespace, self._act("delete-namespace", body, repeatable=False))

    def partitions(self, topic: TopicRef) -> list[PartitionState]:
        """Return the state of each partition of a topic, ordered by value.

        A partition exists from its first message on; that of a topic without a key always does.

        Raises:
            TopicNotFound: There is none of this name.
        """
        body = build(TopicBody, "partitions", topic=name_of(topic))
        return [parsed(PartitionState, found) for found in self._act("partition-states", body)]

    def offset_for_timestamp(
        self, topic: TopicRef, timestamp: TimeValue, partition: PartitionValue = None
    ) -> int:
        """Return the offset of the first message at or after a time, else the log's end.

        Raises:
            TopicNotFound: There is no such topic.
            InvalidArgument: The time has no zone.
        """
        body = build(
            OffsetForTimestamp,
            "offset_for_timestamp",
            topic=name_of(topic),
            partition=wire_partition(partition),
            timestamp=wire_time(timestamp),
        )
        return int(self._act("offset-for-timestamp", body)["offset"])

    def commit_offsets(
        self,
        consumer: str,
        topic: TopicRef,
        offsets: Mapping[PartitionValue, int],
        member: str | None = None,
        member_epoch: int | None = None,
    ) -> None:
        """Set the next offsets of a named consumer, by partition value: all of them, or none.

        Args:
            consumer: The consumer's name.
            topic: The topic.
            offsets: The next offset to read, by partition value.
            member: The member of the consumer's group that commits; None: it has no members.
            member_epoch: The member's epoch.

        Raises:
            FencedMember: The member does not hold a partition; or none is given, and the group has
                members.
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: One is past the end of its log; facts `partition`, `log_end_offset`.
        """
        name = name_of(topic)
        found = {wire_partition(value): offset for value, offset in offsets.items()}
        body = CommitOffsets.of_topic(consumer, name, found)
        if body is not None and member is not None:
            body = body.model_copy(update={"member": member, "member_epoch": member_epoch})
        body = body or build(
            CommitOffsets,
            "commit_offsets",
            consumer=consumer,
            member=member,
            member_epoch=member_epoch,
            offsets=[
                {"topic": name, "partition": value, "offset": offset}
                for value, offset in found.items()
            ],
        )
        self._transport.answer("commit-offsets", body, repeatable=True)

    def committed_offsets(
        self, consumer: str, topic: TopicRef | None = None
    ) -> list[ConsumerOffset]:
        """Return the next offsets of a named consumer, of one topic or of all."""
        body = build(
            GetOffsets,
            "committed_offsets",
            consumer=consumer,
            topic=None if topic is None else name_of(topic),
        )
        found = self._act("get-offsets", body)["offsets"]
        return [parsed(ConsumerOffset, each) for each in found]

    def delete_offsets(self, consumer: str, topic: TopicRef | None = None) -> list[ConsumerOffset]:
        """Delete a named consumer's offsets, of one topic or of all; returns those that it had.

        All are those that the caller may read. Nobody lists the consumer, and its lag, from then
        on; one that starts again begins anew.

        Raises:
            TopicNotFound: There is no such topic.
            FencedMember: The consumer group of this name has members.
        """
        name = None if topic is None else name_of(topic)
        body = build(DeleteOffsets, "delete_offsets", consumer=consumer, topic=name)
        found = self._act("delete-offsets", body, repeatable=False)["offsets"]
        return [parsed(ConsumerOffset, each) for each in found]

    def resolve_offset(
        self, topic: TopicRef, offset: OffsetValue, partition: PartitionValue = None
    ) -> int:
        """Return the number that a word, a time or a negative number stands for now.

        Raises:
            TopicNotFound: There is no such topic.
        """
        if isinstance(offset, int) and offset >= 0:
            return offset
        return next(iter(self._resolved(topic, partition, None, offset).values()))

    def resolve_offsets(self, topic: TopicRef, offset: OffsetValue) -> dict[JsonScalar, int]:
        """Return the number that an offset stands for now in each partition, by its value.

        Raises:
            TopicNotFound: There is no such topic.
            OffsetOutOfRange: The offset is below a log's start.
        """
        return self._resolved(topic, None, ALL, offset)

    def _counted(
        self,
        topic: TopicRef,
        partition: PartitionValue,
        partitions: PartitionsValue | None,
        offset: OffsetsValue,
    ) -> OffsetsValue:
        """Return a start that the server knows: a negative number is resolved, by partition."""
        if not is_from_end(offset):
            return offset
        found = self._resolved(topic, partition, partitions, cast("int", offset))
        return next(iter(found.values())) if partitions is None else found

    def _begun(
        self,
        place: tuple[TopicRef, PartitionValue, PartitionsValue | None, OffsetsValue],
        read: Callable[[OffsetsValue], _Begun],
    ) -> _Begun:
        """Begin a read at a start that the server knows; see `_counted`.

        Retention may pass a start that was counted from the end before the read begins: it is
        counted again, and is the earliest row that is left.
        """
        attempts = self._transport.retry.attempts if is_from_end(place[-1]) else 1
        while True:
            attempts -= 1
            try:
                return read(self._counted(*place))
            except OffsetOutOfRange:
                if attempts <= 0:
                    raise

    def _resolved(
        self,
        topic: TopicRef,
        partition: PartitionValue,
        partitions: PartitionsValue | None,
        offset: OffsetValue,
    ) -> dict[JsonScalar, int]:
        def found(offset: OffsetValue) -> dict[JsonScalar, int]:
            where = place(partition, partitions, offset)
            command = build(
                InfoCommand, "offsets", error=InvalidTicket, topic=name_of(topic), **where
            )
            return starts(self._transport, command)

        if not is_from_end(offset):
            return found(offset)
        kept, ends = found("earliest"), found("latest")
        count = cast("int", offset)
        return {value: max(kept.get(value, 0), end + count) for value, end in ends.items()}

    def _described(self, topic: TopicRef) -> Topic:
        return topic if isinstance(topic, Topic) else self.topic(topic)

    def _act(self, action: str, body: ActionBody, *, repeatable: bool = True) -> Any:
        return self._transport.act(action, body, repeatable=repeatable)


def is_from_end(offset: object) -> bool:
    """Return whether a start is a negative number."""
    return isinstance(offset, int) and offset < 0


def name_of(topic: TopicRef) -> str:
    """Return a topic's name, as calls send it."""
    return topic.name if isinstance(topic, Topic) else topic


def which(
    calls: AdminCalls,
    topic: TopicRef,
    partition: PartitionValue,
    partitions: PartitionsValue | None,
    *,
    is_planned: bool = False,
) -> PartitionsValue | None:
    """Return which of many partitions a read is of; None where it is of one.

    Args:
        calls: Look a topic up.
        topic: Topic that is read.
        partition: The value that was asked for.
        partitions: The values that were asked for.
        is_planned: Whether a plan of all partitions will tell whether the topic has a key, so that
            it need not be looked up.

    Raises:
        TopicNotFound: There is none of this name, and the partitions depend on its key.
    """
    check_which(partition, partitions)
    if partition is not None or partitions is not None:
        return partitions
    if is_planned and not isinstance(topic, Topic):
        return ALL
    described = topic if isinstance(topic, Topic) else calls.topic(topic)
    return None if described.partition_key is None else ALL


def check_which(partition: PartitionValue, partitions: PartitionsValue | None) -> None:
    """Raise `InvalidTicket` where both are given, or no partition at all."""
    if partition is not None and partitions is not None:
        raise InvalidTicket("keys 'partition' and 'partitions' exclude each other")
    if partitions is not None and len(partitions) == 0:
        raise InvalidTicket("key 'partitions': must not be empty")


def _column_specs(columns: SchemaLike | None, argument: str) -> tuple[ColumnSpec, ...]:
    if columns is None:
        return ()
    if fields := _fields(columns):
        return tuple(ColumnSpec(name=name, type=text) for name, text in fields.items())
    found = schema_to_fields(schema_of(columns, argument))
    return tuple(ColumnSpec(name=spec.name, type=spec.type) for spec in found)


def _schema_keys(schema: SchemaLike) -> dict[str, Any]:
    fields = _fields(schema)
    if fields is None:
        return {"schema_ipc": schema_to_ipc(schema_of(schema))}
    specs = tuple(
        FieldSpec(
            name=name,
            type=type_text.removesuffix(" not null"),
            nullable=not type_text.endswith(" not null"),
        )
        for name, type_text in fields.items()
    )
    return {"schema": SchemaSpec(fields=specs)}


def _fields(schema: SchemaLike) -> Fields | None:
    """Return columns whose types are all text, which the server reads; None where some are not."""
    if not isinstance(schema, Mapping):
        return None
    columns = cast("Mapping[object, object]", schema)
    is_text = all(isinstance(each, str) for item in columns.items() for each in item)
    return cast("Fields", columns) if is_text else None
