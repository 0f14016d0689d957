"""Topics, their configuration, namespaces and nodes."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from wings_core.model.pages import PageFormat
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import SLOTS, SLOTS_MAX, Partition, slot_of

TABLE_AFTER_MS = 3_600_000
"""Default age in milliseconds at which messages of a topic with a table move."""


class KafkaConfig(BaseModel):
    """Configuration of a topic that Kafka's clients produce to and consume."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    partitions: int = Field(
        ge=1,
        le=SLOTS_MAX,
        description="Number of partitions, whose values are 0 to this less one. It only rises.",
    )
    name: str | None = Field(
        default=None,
        description="Name for Kafka's clients. Null: the topic's id.",
    )
    value: Literal["binary", "json"] = Field(
        default="binary",
        description="Whether records keep their values as bytes, or are rows from JSON objects.",
    )
    cleanup_policy: Literal["delete", "compact", "compact,delete"] = Field(
        default="delete",
        description="The topic's `cleanup.policy` for Kafka's programs. Rows are never compacted; "
        "with `compact` Kafka's producers have to state keys.",
    )


class Config(BaseModel):
    """Configuration of a topic or share group; null selects a key's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _take_defaults(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        fields, found = cls.model_fields, cast("dict[Any, Any]", given)
        return {
            key: fields[key].default if value is None and key in fields else value
            for key, value in found.items()
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a stored configuration; unknown keys, of a later release, are ignored.

        Raises:
            ValueError: The text is not a configuration.
        """
        return cls.model_validate_json(text, extra="ignore")


class TopicConfig(Config):
    """Configuration of a topic, set at creation or later."""

    batch_bytes_max: int | None = Field(
        default=None,
        ge=1,
        description="Largest batch accepted, in bytes of Arrow buffers; the server's limit applies "
        "as well. Null: only the server's limit.",
    )
    retention_ms: int | None = Field(
        default=None,
        ge=1,
        description="Milliseconds that messages are kept, from their timestamp. Null: for ever.",
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Least stored bytes of newest messages that each partition keeps. Null: all.",
    )
    retention_on_acceptance: bool = Field(
        default=False,
        description="Whether to delete messages that every share group of the topic has finished. "
        "Nothing is deleted while the topic has no group, or a group has not finished it.",
    )
    tier_after_ms: int | None = Field(
        default=None,
        ge=0,
        description="Milliseconds from their timestamp until messages move to the remote store, "
        "small pages merged into large compressed segments. Null: an hour if the topic has a "
        "table or the server a remote store of its own, otherwise never.",
    )
    segment_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Approximate stored bytes of the pages that are merged into one segment.",
    )
    segment_format: Literal["arrow", "parquet"] = Field(
        default="arrow",
        description="Format of new segments: Arrow IPC files, or Parquet files for topics whose "
        "types Parquet supports.",
    )
    table: Literal["iceberg"] | None = Field(
        default=None,
        description="Whether the topic's segments, as Parquet files, also form an Iceberg table. "
        "Null: they do not; the next maintenance drops an existing table from its catalog, and its "
        "rows stay in the log.",
    )
    table_partition_by: str | None = Field(
        default=None,
        max_length=1_000,
        description="Partitioning of the table: transforms of the partition key and of "
        "`__timestamp`, like `bucket(16, key), day(__timestamp)`. Null: unpartitioned.",
    )
    table_commit_ms: int = Field(
        default=60_000,
        ge=0,
        description="Least milliseconds between two snapshots of the table.",
    )
    kafka: KafkaConfig | None = Field(
        default=None,
        description="How Kafka's clients see the topic, whose key is an int32 column `partition`. "
        "Set at creation. Null: it has no numbered partitions.",
    )

    def changed(self, change: "TopicConfig") -> "TopicConfig":
        """Return the configuration with the keys that are set in `change` replaced."""
        given = {key: getattr(change, key) for key in change.model_fields_set}
        if self.kafka is not None and change.kafka is not None:
            kafka = change.kafka
            some = {key: getattr(kafka, key) for key in kafka.model_fields_set}
            given["kafka"] = self.kafka.model_copy(update=some)
        return self.model_copy(update=given)

    @property
    def merged_format(self) -> "PageFormat":
        """Format of merged pages."""
        is_parquet = self.segment_format == "parquet" or self.table is not None
        return PageFormat.PARQUET if is_parquet else PageFormat.SEGMENT


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; its UUID distinguishes it from earlier and later topics of the same name."""

    name: TopicName
    uuid: str
    schema: pa.Schema
    partition_key: str | None
    config: TopicConfig
    created_at: int
    """Creation time in microseconds since the epoch."""
    earlier_schemas: tuple[pa.Schema, ...] = ()
    """Schemas of the versions before that of `schema`, from version 1 on."""
    later_schemas: tuple[pa.Schema, ...] = ()
    """Schemas of later versions than `schema`, if a reader or writer uses an earlier one."""

    @property
    def schema_version(self) -> int:
        """Version of `schema`, from 1."""
        return len(self.earlier_schemas) + 1

    @property
    def schema_versions(self) -> int:
        """Latest known version."""
        return len(self.earlier_schemas) + 1 + len(self.later_schemas)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """Schemas of all known versions, from version 1 on."""
        return (*self.earlier_schemas, self.schema, *self.later_schemas)

    def at(self, version: int) -> "Topic":
        """Return the topic with the schema of `version`, from 1 to `schema_versions`.

        The schema is the same object each time, as caches use its identity.
        """
        if version == self.schema_version:
            return self
        known = self.schemas
        assert 1 <= version <= len(known), "a version that is known"
        return replace(
            self,
            schema=known[version - 1],
            earlier_schemas=known[: version - 1],
            later_schemas=known[version:],
        )

    @property
    def key_type(self) -> pa.DataType | None:
        """Type of the partition key's column; None for a topic without a key."""
        return None if self.partition_key is None else self.schema.field(self.partition_key).type

    @property
    def slots(self) -> int:
        """Number of its slots, which are 0 to this less one; without a key only 0 is used."""
        return SLOTS if self.config.kafka is None else self.config.kafka.partitions

    def slot_of(self, partition: Partition) -> int:
        """Return the slot of a partition."""
        return slot_of(partition, numbered=self.config.kafka is not None)

    @property
    def time_column(self) -> str | None:
        """Column that times its rows, a timestamp[ms]; None for a topic without one.

        A batch's timestamp is at least the greatest value in it, so a row is never later by this
        column than by its timestamp.
        """
        kafka = self.config.kafka
        return "timestamp" if kafka is not None and kafka.value == "binary" else None

    @property
    def kafka_name(self) -> str:
        """Name for Kafka's clients."""
        kafka = self.config.kafka
        return self.name.topic if kafka is None or kafka.name is None else kafka.name


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """A namespace and its creation time (microseconds since the epoch).

    Its UUID distinguishes it from earlier and later namespaces of the same name.
    """

    name: NamespaceName
    uuid: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Node:
    """A Flight node of a deployment, and its addresses for clients."""

    id: str
    """Unique id of one run of the process."""
    address: str
    """Flight address `HOST:PORT`, with an IPv6 host in brackets."""
    http: str = ""
    """HTTP URL; empty if an earlier version registered the node."""
    since: int = 0
    """Start time in microseconds since the epoch by its clock; 0 from an earlier version."""
    kafka: str = ""
    """Address `HOST:PORT` of Kafka's protocol; empty if it is not served."""

    @property
    def flight(self) -> str:
        """Flight URL; uses TLS if HTTP does, as a server configures both alike."""
        return f"{'grpc+tls' if self.http.startswith('https:') else 'grpc'}://{self.address}"


_NO_SCHEMA = pa.schema([])


def named_topic(name: TopicName, uuid: str) -> Topic:
    """Return a topic by name and UUID, as far as what belongs to it is stored by."""
    return Topic(name, uuid, _NO_SCHEMA, None, TopicConfig(), 0)
