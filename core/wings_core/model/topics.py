"""Topics and their namespaces."""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from wings_core.model.pages import PageFormat
from wings_core.names import NamespaceName, TopicName


class TopicConfig(BaseModel):
    """What a topic's owner may set, at creation and later; null is a key's default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    batch_bytes_max: int | None = Field(
        default=None,
        ge=1,
        description="Largest batch accepted, in bytes of Arrow buffers; the server's limit applies "
        "as well. Null: the server's alone.",
    )
    retention_ms: int | None = Field(
        default=None,
        ge=1,
        description="Milliseconds that messages are kept, from their timestamp. Null: for ever.",
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Stored bytes that each partition keeps at least, of its newest messages. "
        "Null: all.",
    )
    retention_on_acceptance: bool = Field(
        default=False,
        description="Whether messages may go that every share group of the topic has finished. "
        "Nothing goes while it has no group, nor what one of them has still to finish.",
    )
    tier_after_ms: int | None = Field(
        default=None,
        ge=0,
        description="Milliseconds after their timestamp that messages move to the remote store, "
        "small pages merged into large compressed segments. Null: an hour where the server has a "
        "remote store of its own, else never.",
    )
    segment_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1,
        description="Stored bytes of pages that are merged into one segment, about.",
    )
    segment_format: Literal["arrow", "parquet"] = Field(
        default="arrow",
        description="What segments are from now on: Arrow IPC files, or Parquet files, for topics "
        "whose types Parquet has.",
    )
    table: Literal["iceberg"] | None = Field(
        default=None,
        description="Whether the topic's segments, as Parquet files, are an Iceberg table too. "
        "Null: they are not; a table that there was is dropped from its catalog by the next "
        "maintenance, and its rows stay in the log.",
    )
    table_partition_by: str | None = Field(
        default=None,
        max_length=1_000,
        description="What the table is partitioned by: transforms of the partition key and of "
        "`__timestamp`, like `bucket(16, key), day(__timestamp)`. Null: nothing.",
    )
    table_commit_ms: int = Field(
        default=60_000,
        ge=0,
        description="Milliseconds between two snapshots of the table, at least.",
    )

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

    def changed(self, change: "TopicConfig") -> "TopicConfig":
        """Return the configuration with the keys that a change was given."""
        given = {key: getattr(change, key) for key in change.model_fields_set}
        return self.model_copy(update=given)

    @property
    def merged_format(self) -> "PageFormat":
        """The format of pages that are merged."""
        is_parquet = self.segment_format == "parquet" or self.table is not None
        return PageFormat.PARQUET if is_parquet else PageFormat.SEGMENT


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Its UUID tells it from one of the same name before or after it."""

    name: TopicName
    uuid: str
    schema: pa.Schema
    partition_key: str | None
    config: TopicConfig
    created_at: int
    """Microseconds since the epoch."""
    earlier_schemas: tuple[pa.Schema, ...] = ()
    """The schemas of the versions before that of `schema`, from version 1 on."""
    later_schemas: tuple[pa.Schema, ...] = ()
    """Those of the versions after it: some where a reader or writer uses an earlier version."""

    @property
    def schema_version(self) -> int:
        """The version of `schema`, from 1 on."""
        return len(self.earlier_schemas) + 1

    @property
    def schema_versions(self) -> int:
        """The last version that is known here."""
        return len(self.earlier_schemas) + 1 + len(self.later_schemas)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The schemas of all versions that are known here, from version 1 on."""
        return (*self.earlier_schemas, self.schema, *self.later_schemas)

    def at(self, version: int) -> "Topic":
        """Return the topic with the schema of a version, from 1 to `schema_versions`.

        The schema is the same object each time, since much is cached by its identity.
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
        """The type of the partition key's column, None for a topic without a key."""
        return None if self.partition_key is None else self.schema.field(self.partition_key).type


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and when it came into being (microseconds since the epoch).

    Its UUID tells it from one of the same name before or after it.
    """

    name: NamespaceName
    uuid: str
    created_at: int
