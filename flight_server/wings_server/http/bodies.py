"""Request bodies as frozen models, and the resolution of their names."""

import json
from dataclasses import dataclass
from typing import Annotated

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
    def any_partition(self) -> bool:
        """Whether messages of any partition may be acquired, as none is given."""
        return "partition" not in self.model_fields_set

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
