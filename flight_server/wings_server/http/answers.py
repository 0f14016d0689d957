"""Models of responses, only for the OpenAPI document: handlers write their JSON directly."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from wings_core.model import TopicConfig
from wings_core.schemas import FieldSpec

_TIME = Field(description="RFC 3339, UTC, six digits of fraction.")


class _Answer(BaseModel):
    """A documented response, without other keys."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


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
    schema_version: int = Field(description="Version of the schema, from 1.")
    partition_key: str | None
    config: TopicConfig
    created_at: str = _TIME


class PartitionDescription(_Answer):
    """The offsets and size of a partition."""

    partition: JsonValue
    log_start_offset: int = Field(description="First offset still stored.")
    next_offset: int = Field(description="Next offset to be assigned.")
    bytes: int
    last_timestamp: str | None


class PrincipalDescription(_Answer):
    """The caller."""

    name: str = Field(description="Name of its token; `anyone` while there are no tokens.")
    grants: list[str] = Field(description="Its rights, each as RIGHT=PATTERN.")


class NodeDescription(_Answer):
    """A process that serves the log."""

    flight: str
    http: str | None
    kafka: str | None
    since: str | None


class DiskDescription(_Answer):
    """The disk of the data directory."""

    free_bytes: int
    used_bytes: int
    watermark_bytes: int = Field(description="Free bytes below which pushes are refused.")


class NeedDescription(_Answer):
    """Something that needs a person."""

    kind: Literal[
        "pushes_refused", "share_groups_closed", "disk_nearly_full", "certificate_ends",
        "backup_old", "node_silent", "dead_letters", "oldest_unfinished", "consumer_lag",
    ]  # fmt: skip
    message: str = Field(description="The finding, in one line.")
    remedy: str = Field(description="What to do about it, in one line.")
    topic: str | None = Field(default=None, description="Full name of the topic it is about.")
    group: str | None = Field(default=None, description="The share group it is about.")
    consumer: str | None = Field(default=None, description="The named consumer it is about.")
    count: int | None = Field(default=None, description="The number of messages, if of messages.")


class HealthDescription(_Answer):
    """State of the server, as far as the caller may know it."""

    version: str = Field(description="Version of the server.")
    tls: bool = Field(description="Whether the listeners use TLS.")
    principal: PrincipalDescription
    nodes: list[NodeDescription] | None = Field(description="Null: not for this token.")
    disk: DiskDescription | None = Field(
        description="Null: not for this token, or there is no data directory."
    )
    needs: list[NeedDescription] = Field(description="The most urgent first, at most 100.")
    needs_left_out: int = Field(description="How many more there are.")


class FetchSuccess(_Answer):
    """The messages read from a partition."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    start_offset: int
    end_offset: int | None = Field(description="Last offset, inclusive; null without messages.")
    next_offset: int = Field(description="Where to read on.")
    messages: list[dict[str, Any]] = Field(description="Objects of the topic's columns.")


class FetchFailure(_Answer):
    """The error of a partition that could not be read."""

    tag: Literal["error"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    partition_value: JsonValue
    message: str
    code: str


class FetchAnswer(_Answer):
    """A result for each partition, in the order of the request."""

    topics: list[Annotated[FetchSuccess | FetchFailure, Field(discriminator="tag")]]


class CommittedDescription(_Answer):
    """Offsets assigned to a batch in one partition."""

    partition_value: JsonValue
    start_offset: int
    end_offset: int = Field(description="Inclusive.")
    timestamp: str = _TIME


class PushSuccess(_Answer):
    """A committed batch; for a single partition, its four values are included here."""

    tag: Literal["success"] = Field(alias="_tag")
    topic: str = Field(description="The full name.")
    committed: list[CommittedDescription] = Field(
        description="Ordered by first row of each partition; empty for an empty batch."
    )
    partition_value: JsonValue = None
    start_offset: int = 0
    end_offset: int = 0
    timestamp: str = ""


class PushFailure(_Answer):
    """A batch that was rejected as a whole."""

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
    end_offset: int = Field(description="Last offset, inclusive; deleted messages are included.")
    lease: str
    delivery_count: int = Field(description="Number of deliveries, this one included.")
    lock_duration_ms: int
    ordering: Literal["partition"] | None = Field(
        default=None, description="Present if the group is ordered."
    )
    traces: list[dict[str, str]] | None = Field(
        default=None,
        description="Trace headers of the spans that pushed the messages, if known.",
    )
    messages: list[dict[str, Any]] = Field(
        description="Objects of the topic's columns and all system columns."
    )


class AcquireAnswer(_Answer):
    """The deliveries; empty if no message became available."""

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
