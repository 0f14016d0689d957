"""Request bodies as frozen models, and the resolution of their names.

The body of a push is split into its envelope and the text of each batch's rows. Rows must not
become Python objects, so their arrays are extracted unparsed. The rest is small and is parsed as
strictly as every other body. msgspec checks the syntax of the whole body on the way, eight times as
fast as Python's decoder, holding the global lock for less time accordingly.
"""

import json
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pyarrow as pa
from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema, model_validator

from wings_core.contracts.actions import AlterTopic, TopicChanges
from wings_core.contracts.messages import (
    Identifier,
    MemberName,
    Message,
    OffsetNumber,
    Timestamp,
    problem_of,
    shortened,
)
from wings_core.contracts.share import Acknowledge
from wings_core.contracts.tickets import MESSAGES_MAX, TIMEOUT_MS_MAX
from wings_core.errors import InvalidArgument
from wings_core.names import DEFAULT_NAMESPACE, ID_PATTERN, NamespaceName, TopicName
from wings_core.times import parse_timestamp

ENTRIES_MAX = 10_000
"""Most partitions of one fetch, and batches of one push."""

TIMEOUT_MS = 500
"""Default `timeout_ms`."""

NAMESPACE_PATTERN = f"^tenants/{ID_PATTERN}/namespaces/{ID_PATTERN}$"

NamespaceText = Annotated[
    str,
    WithJsonSchema(
        {"type": "string", "pattern": NAMESPACE_PATTERN, "examples": ["tenants/t/namespaces/n"]}
    ),
]
"""Full name of a namespace, parsed by `NamespaceName`, with an error code of its own."""

TopicText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^(tenants/{ID_PATTERN}/namespaces/{ID_PATTERN}/topics/)?{ID_PATTERN}$",
            "description": "A bare id in the body's namespace, or a full name in that namespace.",
        }
    ),
]

PartitionValue = Annotated[
    JsonValue,
    WithJsonSchema(
        {
            "description": "A value of the key column's kind: an integer, a string (base64 for "
            "binary) or a boolean; null or absent for a topic without a key.",
        }
    ),
]


def _not_null(value: object) -> object:
    if value is None:
        raise problem_of("must not be null")
    return value


class FetchEntry(Message):
    """One partition to fetch."""

    topic: TopicText
    partition_value: PartitionValue = None
    offset: OffsetNumber = Field(description="The first message wanted.")


class FetchBody(Message):
    """The body of `POST /v1/fetch`."""

    namespace: NamespaceText
    timeout_ms: int = Field(
        default=TIMEOUT_MS, gt=1, le=TIMEOUT_MS_MAX, description="Counted from arrival."
    )
    min_messages: int = Field(
        default=1,
        ge=1,
        le=MESSAGES_MAX,
        description="Least messages of the whole request, which waits for them.",
    )
    max_messages: int = Field(
        default=10_000, ge=1, le=MESSAGES_MAX, description="Most messages of the whole request."
    )
    topics: Annotated[
        tuple[FetchEntry, ...], Field(strict=False, min_length=1, max_length=ENTRIES_MAX)
    ]

    @model_validator(mode="after")
    def _check_limits(self) -> "FetchBody":
        if self.min_messages > self.max_messages:
            raise problem_of(
                f"key 'min_messages': must be at most max_messages ({self.max_messages}); "
                f"got {self.min_messages}"
            )
        return self


class PushEntry(Message):
    """One batch to push."""

    topic: TopicText
    partition_value: PartitionValue = None
    timestamp: Annotated[
        Timestamp | None,
        BeforeValidator(_not_null),
        WithJsonSchema(
            {
                "type": "string",
                "format": "date-time",
                "description": "Timestamp of all rows; the time of commit if absent.",
            }
        ),
    ] = None
    data: Annotated[
        int,
        WithJsonSchema(
            {
                "type": "array",
                # Not declared as objects: a row of another kind only fails its batch.
                "items": {},
                "description": "The rows: objects of the topic's columns.",
            }
        ),
    ]
    """Index of the rows among those that `envelope` extracted from the body."""

    @property
    def timestamp_us(self) -> int | None:
        """Timestamp in microseconds since the epoch."""
        return None if self.timestamp is None else parse_timestamp(self.timestamp)


class PushBody(Message):
    """The body of `POST /v1/push`."""

    namespace: NamespaceText
    batches: Annotated[tuple[PushEntry, ...], Field(strict=False, max_length=ENTRIES_MAX)]


class ShareAcquireBody(Message):
    """The body of `POST /v1/share/acquire`: a ticket of kind `acquire` with a namespace."""

    namespace: NamespaceText = str(DEFAULT_NAMESPACE)
    group: Identifier
    topic: TopicText
    member: MemberName = Field(description="Name of the member that will hold the messages.")
    partition: PartitionValue = None
    timeout_ms: int = Field(
        default=TIMEOUT_MS, gt=1, le=TIMEOUT_MS_MAX, description="Counted from arrival."
    )
    max_messages: int = Field(default=10_000, ge=1, le=MESSAGES_MAX)

    @property
    def topic_name(self) -> TopicName:
        """Name of the topic, in the body's namespace.

        Raises:
            InvalidName: The text is not a name.
            InvalidArgument: The topic is in another namespace.
        """
        return topic_in(NamespaceName.parse(self.namespace), self.topic)


class AlterTopicBody(TopicChanges):
    """The body of `PATCH` of a topic: that of `alter-topic`, with the topic in the path."""

    topic: TopicText | None = None

    def action_body(self, name: str) -> AlterTopic:
        """Return the action's body.

        Args:
            name: The full name in the path.

        Raises:
            InvalidArgument: The body names another topic.
        """
        path = TopicName.parse(name)
        if self.topic is not None and topic_in(path.namespace, self.topic) != path:
            raise InvalidArgument("key 'topic': names another topic than the path")
        return AlterTopic.model_validate(
            {"topic": name, "config": self.config, "schema": self.changes}
        )


class ShareAcknowledgeBody(Acknowledge):
    """The body of `POST /v1/share/acknowledge`: that of `share-acknowledge` with a namespace."""

    namespace: NamespaceText = str(DEFAULT_NAMESPACE)
    topic: TopicText

    @property
    def action_body(self) -> Acknowledge:
        """The action's body, with the topic's full name.

        Raises:
            InvalidName: The text is not a name.
            InvalidArgument: The topic is in another namespace.
        """
        name = topic_in(NamespaceName.parse(self.namespace), self.topic)
        return Acknowledge(group=self.group, topic=str(name), member=self.member, acks=self.acks)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch with valid names; `topics` has the topic of each entry, in order."""

    body: FetchBody
    topics: tuple[TopicName, ...]


def topic_in(namespace: NamespaceName, text: str) -> TopicName:
    """Return the topic of a namespace that a body or path names by id or full name.

    Raises:
        InvalidName: The text is not a name.
        InvalidArgument: The topic is in another namespace.
    """
    name = TopicName.parse(text, namespace)
    if name.namespace != namespace:
        raise InvalidArgument(shortened(f"topic {text} is not in the namespace {namespace}"))
    return name


def parse_fetch(raw: bytes) -> FetchRequest:
    """Parse the body of a fetch and the names in it.

    Raises:
        InvalidArgument: The body or a name is invalid; the request fails as a whole.
    """
    body = FetchBody.parse(raw, InvalidArgument, "fetch body")
    namespace = NamespaceName.parse(body.namespace)
    topics = tuple(topic_in(namespace, entry.topic) for entry in body.topics)
    seen: set[tuple[TopicName, str]] = set()
    for topic, entry in zip(topics, body.topics, strict=True):
        key = (topic, json.dumps(entry.partition_value, sort_keys=True))
        if key in seen:
            raise InvalidArgument(shortened(f"fetch body: {topic}, partition {key[1]}: duplicate"))
        seen.add(key)
    return FetchRequest(body, topics)


class _Batch(msgspec.Struct):
    data: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    batches: list[_Batch] = []


_DECODER = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class PushedRows:
    """One batch of a push, with its parsed topic name."""

    topic: TopicName
    entry: PushEntry
    rows: bytes
    """Unparsed text of a JSON array."""


def parse_push(raw: bytes) -> list[PushedRows]:
    """Parse the body of a push, except its rows.

    Raises:
        InvalidArgument: The body or a name is invalid; the request fails as a whole.
    """
    spans = _row_spans(raw)
    envelope: list[bytes] = []
    end = 0
    for index, (start, stop) in enumerate(spans):
        envelope += [raw[end:start], b"%d" % index]
        end = stop
    body = PushBody.parse(b"".join([*envelope, raw[end:]]), InvalidArgument, "push body")
    namespace = NamespaceName.parse(body.namespace)
    topics = [topic_in(namespace, entry.topic) for entry in body.batches]
    return [
        PushedRows(topic, entry, raw[slice(*spans[entry.data])])
        for topic, entry in zip(topics, body.batches, strict=True)
    ]


def _row_spans(raw: bytes) -> list[tuple[int, int]]:
    """Return the range of bytes `[start, end)` with the rows of each batch, in order."""
    try:
        raw.decode("utf-8")  # msgspec does not validate skipped values.
        body = _DECODER.decode(raw)
    except UnicodeDecodeError:
        raise InvalidArgument("push body: not UTF-8") from None
    except msgspec.ValidationError as problem:
        raise InvalidArgument(shortened(f"push body: {problem}")) from None
    except (msgspec.DecodeError, RecursionError) as problem:
        raise InvalidArgument(shortened(f"push body: not valid JSON: {problem}")) from None
    base = pa.py_buffer(raw).address
    spans: list[tuple[int, int]] = []
    for index, batch in enumerate(body.batches):
        data = pa.py_buffer(memoryview(batch.data))
        if data.size == 0:
            continue  # Absent: the envelope's model raises a better error.
        if bytes(data[:1]) != b"[":
            raise InvalidArgument(f"push body: key 'batches[{index}].data': must be a list")
        # Raw values are views of the body, not copies.
        start = data.address - base
        assert 0 <= start <= len(raw) - data.size
        spans.append((start, start + data.size))
    return spans
