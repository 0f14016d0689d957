"""Kafka topics: topics with numbered partitions that Kafka's clients see under a name of Kafka's.

The rules of their names, columns and configuration; the protocol itself is the server's.
"""

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.errors import InvalidArgument, InvalidSchema
from wings_core.names import ID_PATTERN, NamespaceName, TopicName

if TYPE_CHECKING:
    from wings_core.model import Topic, TopicConfig

PARTITION_COLUMN = "partition"
"""The key column of a Kafka topic: int32, 0 to the number of partitions less one."""

BINARY_SCHEMA = pa.schema(
    [
        pa.field(PARTITION_COLUMN, pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
"""The columns of a Kafka topic with binary values."""

NAME_PATTERN = r"[a-zA-Z0-9._-]{1,249}"
_NAME = re.compile(NAME_PATTERN)
_ID = re.compile(ID_PATTERN)
_OUTSIDE_SLUG = re.compile(r"^[^a-z]+|[^a-z0-9_-]+")

_SLUG_LENGTH_MAX = 54


def topic_id_of(name: str) -> str:
    """Return the id of the topic with a name of Kafka's.

    It is the name where that is an id. Else it is a slug of the name, a hyphen, and the first 8
    hexadecimal digits of the name's SHA-256, so two names have one id only where those agree:
    compare `Topic.kafka_name`.

    Raises:
        InvalidArgument: Kafka allows no such name.
    """
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise InvalidArgument(f"{name[:80]!r} is not a name of a Kafka topic: {NAME_PATTERN}")
    if _ID.fullmatch(name) is not None:
        return name
    slug = _OUTSIDE_SLUG.sub(lambda match: "-" if match.start() else "", name.lower())
    digits = sha256(name.encode()).hexdigest()[:8]
    return f"{slug[:_SLUG_LENGTH_MAX] or 'topic'}-{digits}"


def topic_name_of(name: str, namespace: NamespaceName) -> TopicName:
    """Return the name of the topic with a name of Kafka's in a namespace; see `topic_id_of`."""
    return namespace.topic(topic_id_of(name))


def check_kafka(topic: "Topic", before: "TopicConfig | None" = None) -> None:
    """Check the columns and the configuration of a Kafka topic; other topics pass.

    Args:
        topic: The topic with its configuration.
        before: The previous configuration; None for a new topic.

    Raises:
        InvalidArgument: The name is not Kafka's, or another than the topic's id is made of; or an
            alteration changes more than the policy and the number of partitions, or lowers that.
        InvalidSchema: The key column or the columns of binary values are not as they must be.
    """
    kafka, known = topic.config.kafka, None if before is None else before.kafka
    if before is not None and (known is None) != (kafka is None):
        raise InvalidArgument("key 'kafka' is set at creation, and is neither added nor removed")
    if kafka is None:
        return
    changed = {"partitions": kafka.partitions, "cleanup_policy": kafka.cleanup_policy}
    if known is not None and kafka != known.model_copy(update=changed):
        raise InvalidArgument("key 'kafka': only `partitions` and `cleanup_policy` can be altered")
    if known is not None and kafka.partitions < known.partitions:
        raise InvalidArgument(
            f"key 'kafka': the topic has {known.partitions} partitions, and cannot have fewer"
        )
    if topic_id_of(topic.kafka_name) != topic.name.topic:
        raise InvalidArgument(
            f"the Kafka topic {topic.kafka_name!r} has the id {topic_id_of(topic.kafka_name)!r}, "
            f"not {topic.name.topic!r}"
        )
    if topic.partition_key != PARTITION_COLUMN or topic.key_type != pa.int32():
        raise InvalidSchema(
            f"the key of a Kafka topic is a column {PARTITION_COLUMN!r} of type int32",
            column=PARTITION_COLUMN,
        )
    if kafka.value == "binary":
        _check_columns(topic.schema)


def _check_columns(schema: pa.Schema) -> None:
    found = {field.name: field.type for field in schema}
    expected = {field.name: field.type for field in BINARY_SCHEMA}
    if list(found.items()) != list(expected.items()):
        raise InvalidSchema(
            "a Kafka topic with binary values has exactly the columns "
            + ", ".join(f"{field.name} {field.type}" for field in BINARY_SCHEMA)
        )
    for name in ("key", "value"):
        if not schema.field(name).nullable:
            raise InvalidSchema(
                f"column {name!r} of a Kafka topic with binary values is nullable", column=name
            )
