"""Models of the answers, for the OpenAPI document alone: handlers write their JSON directly."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from wings_core.model import TopicConfig
from wings_core.schemas import FieldSpec

_TIME = Field(description="RFC 3339, UTC, six digits of fraction.")


class _Answer(BaseModel):
    """A documented answer, which has no other keys."""

    model_config = ConfigDict(extra="forbid")


class NamespaceDescription(_Answer):
    """A namespace."""

    namespace: str
    created_at: str = _TIME


class SchemaDescription(_Answer):
    """A topic's columns."""

    fields: list[FieldSpec]


class TopicDescription(_Answer):
    """A topic."""

    topic: str = Field(description="The full name.")
    uuid: str
    columns: SchemaDescription = Field(alias="schema")
    schema_ipc: str = Field(description="Base64 of the schema as an Arrow IPC message.")
    schema_version: int = Field(description="Of the schema, from 1 on.")
    partition_key: str | None
    config: TopicConfig
    created_at: str = _TIME


class PartitionDescription(_Answer):
    """The offsets and size of a partition."""

    partition: JsonValue
    log_start_offset: int = Field(description="The first that is still kept.")
    next_offset: int = Field(description="The next to be assigned.")
    bytes: int
    last_timestamp: str | None


class FetchSuccess(_Answer):
    """The messages read from a partition."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    start_offset: int
    end_offset: int | None = Field(description="Inclusive; null where there are no messages.")
    next_offset: int = Field(description="Where to read on.")
    messages: list[dict[str, Any]] = Field(description="Objects of the topic's columns.")


class FetchFailure(_Answer):
    """Why a partition could not be read."""

    tag: Literal["error"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    message: str
    code: str


class FetchAnswer(_Answer):
    """A result for each partition, in the order of the request."""

    topics: list[Annotated[FetchSuccess | FetchFailure, Field(discriminator="tag")]]


class CommittedDescription(_Answer):
    """Offsets that a batch got in one partition."""

    partition_value: JsonValue
    start_offset: int
    end_offset: int = Field(description="Inclusive.")
    timestamp: str = _TIME


class PushSuccess(_Answer):
    """A batch that was committed; of exactly one partition, its four values stand here too."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    committed: list[CommittedDescription] = Field(
        description="By first row of each partition; none for an empty batch."
    )
    partition_value: JsonValue = None
    start_offset: int = 0
    end_offset: int = 0
    timestamp: str = ""


class PushFailure(_Answer):
    """A batch that was refused, whole."""

    tag: Literal["error"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    message: str
    code: str


class PushAnswer(_Answer):
    """The batches, in the order pushed."""

    batches: list[Annotated[PushSuccess | PushFailure, Field(discriminator="tag")]]


class DeliveryDescription(_Answer):
    """Messages of a partition that the member holds, under one lease."""

    partition: JsonValue
    start_offset: int
    end_offset: int = Field(description="Inclusive; messages that are gone are in the range.")
    lease: str
    delivery_count: int = Field(description="Of deliveries, this one included: 1 at the first.")
    lock_duration_ms: int
    ordering: Literal["partition"] | None = Field(
        default=None, description="Present where the group is ordered."
    )
    traces: list[dict[str, str]] | None = Field(
        default=None,
        description="Headers of the traces that the messages were pushed in, where they are known.",
    )
    messages: list[dict[str, Any]] = Field(
        description="Objects of the topic's columns and all system columns."
    )


class AcquireAnswer(_Answer):
    """The deliveries; an empty list where no message became available."""

    deliveries: list[DeliveryDescription]
    end: Literal["max_messages", "min_messages", "deadline"] = Field(
        description="As many messages as requested, fewer, or none."
    )


class AcknowledgementDescription(_Answer):
    """The outcome of an acknowledgement."""

    partition: JsonValue
    first: int
    last: int
    code: str | None = Field(description="Null: it succeeded.")
    message: str = ""


class AcknowledgeAnswer(_Answer):
    """A result for each acknowledgement, in the order of the request."""

    results: list[AcknowledgementDescription]
