"""DoAction: the bodies of actions, and the JSON of their responses."""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import AfterValidator, Field, JsonValue, model_validator

from wings_core.contracts.messages import (
    INT64_MAX,
    Identifier,
    Message,
    OffsetNumber,
    StageId,
    Timestamp,
    accepted_by,
    check_distinct,
    dump,
    problem_of,
    to_bytes,
)
from wings_core.contracts.shards import SHARDS_MAX, ClaimEntry, Seconds, ShardEntry, ShardIds, State
from wings_core.errors import InvalidArgument
from wings_core.model import (
    AbortResult,
    CommittedOffset,
    MemberEpoch,
    NamespaceState,
    Node,
    PartitionState,
    PublishResult,
    TierState,
    Topic,
    TopicConfig,
)
from wings_core.partitions import partition_value
from wings_core.schema_changes import SchemaChange
from wings_core.schemas import (
    FIELDS_MAX,
    FieldSpec,
    check_topic_schema,
    schema_from_fields,
    schema_from_ipc,
    schema_to_fields,
    schema_to_ipc,
)
from wings_core.security.quotas import QUOTA_MAX, Quotas
from wings_core.security.rights import Grant
from wings_core.security.tokens import GRANTS_MAX, Token
from wings_core.times import format_timestamp, parse_timestamp

OFFSETS_MAX = 10_000
"""Most offsets of one `commit-offsets` or `stage-publish`."""

STAGES_MAX = 10_000
"""Most stages of one `stage-publish` or `stage-abort`."""


class ActionBody(Message):
    """The JSON body of an action."""

    @classmethod
    def parse_body(cls, raw: "bytes | pa.Buffer | None") -> Self:
        """Parse the body of an action; an empty one counts as `{}`.

        Raises:
            InvalidArgument: The message names the key and the problem.
        """
        return cls.parse(to_bytes(raw) or b"{}", InvalidArgument, "action body")


class SchemaSpec(Message):
    """A schema as JSON."""

    fields: Annotated[tuple[FieldSpec, ...], Field(strict=False, max_length=FIELDS_MAX)]


class CreateTopic(ActionBody):
    """The body of `create-topic`."""

    nullable_keys: ClassVar[frozenset[str]] = frozenset({"partition_key"})

    topic: str
    fields: Annotated[SchemaSpec | None, Field(alias="schema")] = None
    """The columns as JSON, unless `schema_ipc` is given."""
    schema_ipc: str | None = None
    """Base64 of the schema as an Arrow IPC message."""
    partition_key: str | None = None
    """Column whose values are the partitions; None for a topic of one partition."""
    config: TopicConfig = TopicConfig.model_construct()
    if_not_exists: bool = False

    @model_validator(mode="after")
    def _check_one_schema(self) -> Self:
        if (self.fields is None) == (self.schema_ipc is None):
            raise problem_of("give exactly one of the keys 'schema' and 'schema_ipc'")
        return self

    def arrow_schema(self) -> pa.Schema:
        """Return the schema, checked with the partition key, without metadata.

        Raises:
            InvalidSchema: A topic cannot have this schema.
        """
        if self.schema_ipc is not None:
            schema = schema_from_ipc(self.schema_ipc)
        else:
            assert self.fields is not None
            schema = schema_from_fields(self.fields.fields)
        check_topic_schema(schema, self.partition_key)
        return schema


class TopicBody(ActionBody):
    """The body of `describe-topic`, `delete-topic` and `tier-states`."""

    topic: str


class ColumnSpec(Message):
    """A column of a change: its name and its type."""

    name: str
    type: str = Field(description="Arrow's name of the type, like `decimal128(12, 2)`.")


Columns = Annotated[tuple[ColumnSpec, ...], Field(strict=False, max_length=FIELDS_MAX)]


class SchemaChangeSpec(Message):
    """A change of a schema as JSON; changes already in effect are ignored."""

    add: Columns = ()
    """Columns to add at the end; they must be nullable, as earlier rows lack them."""
    widen: Columns = ()
    """Columns to widen, with their new types."""
    nullable: Annotated[tuple[str, ...], Field(strict=False, max_length=FIELDS_MAX)] = ()
    """Columns to make nullable."""

    def change(self) -> SchemaChange:
        """Return the change.

        Raises:
            InvalidSchema: A type cannot be parsed, or a column is widened twice.
        """
        return SchemaChange(_columns(self.add), _columns(self.widen), self.nullable)


def _columns(specs: Iterable[ColumnSpec]) -> pa.Schema:
    return schema_from_fields(FieldSpec(name=spec.name, type=spec.type) for spec in specs)


class TopicChanges(ActionBody):
    """The changes of `alter-topic`."""

    config: TopicConfig | None = None
    """Configuration keys to change, null for a key's default; None for no change."""
    changes: Annotated[SchemaChangeSpec | None, Field(alias="schema")] = None
    """Change of the schema; None for no change."""

    @model_validator(mode="after")
    def _check_some(self) -> Self:
        if self.config is None and self.changes is None:
            raise problem_of("give at least one of the keys 'config' and 'schema'")
        return self


class AlterTopic(TopicChanges):
    """The body of `alter-topic`."""

    topic: str

    def to_bytes(self) -> bytes:
        """Return the message as JSON, with the keys that are set, including to their defaults."""
        return dump(self.model_dump(mode="json", by_alias=True, exclude_unset=True))


LIST_MAX = 10_000
"""Greatest `limit` of a list."""

Limit = Annotated[int, Field(ge=1, le=LIST_MAX)]
Part = Annotated[str, Field(max_length=255)]
"""A part of a name or of a partition value's JSON text."""


class PartitionStates(TopicBody):
    """The body of `partition-states`: all partitions by value, or some of them."""

    contains: Part = ""
    """Select partitions whose value's JSON text contains this."""
    order: Literal["value", "bytes", "rows", "last_timestamp"] = "value"
    """Order: ascending by value, descending by the others."""
    skip: OffsetNumber = 0
    """Partitions to skip."""
    limit: Limit | None = None
    """Most partitions returned; None for all."""


class ListTopics(ActionBody):
    """The body of `list-topics`."""

    namespace: str | None = None
    """Full name of the namespace; None if absent."""
    contains: Part = ""
    """Select topics whose id contains this."""
    after: Part = ""
    """Select topics whose id is greater."""
    limit: Limit | None = None
    """Most topics returned; None for all."""


class ListNodes(ActionBody):
    """The body of `list-nodes`: empty."""


class NamespaceBody(ActionBody):
    """The body of `create-namespace` and `delete-namespace`."""

    namespace: str
    """Full name of the namespace."""


class ListNamespaces(ActionBody):
    """The body of `list-namespaces`: an empty object."""


class OffsetForTimestamp(ActionBody):
    """The body of `offset-for-timestamp`."""

    topic: str
    partition: JsonValue = None
    """Partition value; None for a topic without a key."""
    timestamp: Timestamp
    """The time, in RFC 3339."""

    @property
    def timestamp_us(self) -> int:
        """The time in microseconds since the epoch, rounded up."""
        return parse_timestamp(self.timestamp, up=True)


class GetOffsets(ActionBody):
    """The body of `get-offsets`."""

    consumer: Identifier
    topic: str | None = None
    """Name of the topic; None for all topics."""


class DeleteOffsets(GetOffsets):
    """The body of `delete-offsets`."""


class _StageBody(ActionBody):
    """Keys common to the actions on stages."""

    writer: Identifier
    """Writer that numbers its batches, such as a streaming query."""
    stages: Annotated[
        tuple[StageId, ...],
        Field(strict=False, max_length=STAGES_MAX),
        AfterValidator(check_distinct),
    ]


class PublishedOffset(Message):
    """A consumer's position in one partition, in the transaction of a publish."""

    topic: str
    partition: JsonValue = None
    offset: OffsetNumber
    """Next offset to read."""


class FencedOffsets(Message):
    """Keys of a commit of a consumer's offsets."""

    consumer: Identifier
    member: Identifier | None = None
    """The member of the consumer's group that commits; None if the group has no members."""
    member_epoch: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    """Epoch of that member, as the last heartbeat returned it."""

    @model_validator(mode="after")
    def _check_member(self) -> Self:
        if (self.member is None) != (self.member_epoch is None):
            raise problem_of("keys 'member' and 'member_epoch' need each other")
        return self

    @property
    def fence(self) -> MemberEpoch | None:
        """The member that commits, if any."""
        if self.member is None or self.member_epoch is None:
            return None
        return MemberEpoch(self.member, self.member_epoch)


class PublishedOffsets(FencedOffsets):
    """Offsets of a named consumer in the transaction of a publish."""

    offsets: Annotated[tuple[PublishedOffset, ...], Field(strict=False, max_length=OFFSETS_MAX)]


class StagePublish(_StageBody):
    """The body of `stage-publish`."""

    batch: OffsetNumber
    """The writer's number of the published batch."""
    shards: Annotated[tuple[ShardEntry, ...], Field(strict=False, max_length=SHARDS_MAX)] = ()
    """Changes of shards in the same transaction."""
    epoch: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    """The writer's epoch, of `transaction-begin`; None for a writer that has begun none."""
    offsets: PublishedOffsets | None = None
    """Offsets of a consumer in the same transaction; None for none."""


class TransactionBegin(ActionBody):
    """The body of `transaction-begin`: its writer begins its next epoch."""

    writer: Identifier


class StageAbort(_StageBody):
    """The body of `stage-abort`."""

    batch: OffsetNumber | None = None
    """Batch whose publication to report; None for none."""
    prefix: StageId | None = None
    """Also delete the stages whose ids begin with this."""


class _ShardsBody(ActionBody):
    """Keys common to the actions on shards."""

    source: Identifier
    """Source of the shards."""


class ShardOpen(_ShardsBody):
    """The body of `shard-open`."""

    token: Identifier
    """Token of the owner of new shards."""
    shards: ShardIds


class ShardAcquire(_ShardsBody):
    """The body of `shard-acquire`."""

    token: Identifier
    """Token of the new owner."""
    claims: Annotated[tuple[ClaimEntry, ...], Field(strict=False, max_length=SHARDS_MAX)]
    stale_seconds: Seconds
    """Time without a change of a shard after which its owner may be replaced."""


class ShardNames(_ShardsBody):
    """The body of `shard-get` and `shard-reset`."""

    shards: ShardIds


class ShardList(_ShardsBody):
    """The body of `shard-list`."""

    state: State | None = None
    """State to select; None for any."""
    after: Annotated[str, Field(max_length=2_048)] = ""
    """Select shards with greater ids, in the order of ids."""
    limit: Annotated[int, Field(ge=1, le=SHARDS_MAX)] = 1_000


class ShardCount(_ShardsBody):
    """The body of `shard-count`."""


class ShardPrune(_ShardsBody):
    """The body of `shard-prune`."""

    age_seconds: Seconds
    """Age of the last change from which finished and dead shards are deleted."""
    count_max: OffsetNumber | None = None
    """Finished and dead shards to keep, the newest; None for no bound."""
    interval_seconds: Seconds
    """Least time between two prunings of a source; within it nothing is deleted."""


class Maintain(ActionBody):
    """The body of `maintain`."""

    topic: str | None = None
    """Name of the topic; None for all topics."""


def describe_published(published: PublishResult) -> dict[str, Any]:
    """Return the response to `stage-publish`."""
    return {
        "committed": [
            {
                "topic": str(found.topic),
                "partition": partition_value(found.partition),
                "start_offset": found.start_offset,
                "end_offset": found.end_offset,
            }
            for found in published.committed
        ],
        "replayed": published.replayed,
    }


def describe_aborted(aborted: AbortResult) -> dict[str, Any]:
    """Return the response to `stage-abort`."""
    return {"deleted": list(aborted.stages), "published": aborted.published}


def describe_node(node: Node) -> dict[str, Any]:
    """Return a node's addresses and start time."""
    since = format_timestamp(node.since) if node.since else None
    return {
        "flight": node.flight,
        "http": node.http or None,
        "kafka": node.kafka or None,
        "since": since,
    }


def describe_topic(topic: Topic) -> dict[str, Any]:
    """Return a topic's description."""
    return {
        "topic": str(topic.name),
        "uuid": topic.uuid,
        "schema": {
            # A column keeps its position, so its number is a permanent id.
            "fields": [
                {**spec.model_dump(), "id": number}
                for number, spec in enumerate(schema_to_fields(topic.schema), 1)
            ]
        },
        "schema_version": topic.schema_version,
        "schema_ipc": schema_to_ipc(topic.schema),
        "partition_key": topic.partition_key,
        "config": topic.config.model_dump(mode="json"),
        "created_at": format_timestamp(topic.created_at),
    }


def describe_namespace(namespace: NamespaceState) -> dict[str, Any]:
    """Return a namespace's description."""
    return {
        "namespace": str(namespace.name),
        "created_at": format_timestamp(namespace.created_at),
    }


def describe_partition_states(states: Iterable[PartitionState]) -> list[dict[str, Any]]:
    """Return the response to `partition-states`, in the order given."""
    return [
        {
            "partition": partition_value(state.partition),
            "log_start_offset": state.log_start_offset,
            "next_offset": state.next_offset,
            "bytes": state.bytes,
            "last_timestamp": None
            if state.last_timestamp is None
            else format_timestamp(state.last_timestamp),
        }
        for state in states
    ]


def describe_tier_states(states: Iterable[TierState]) -> list[dict[str, Any]]:
    """Return the response to `tier-states`, in the order given."""
    return [
        {
            "partition": partition_value(state.partition),
            "tier": "remote" if state.remote else "hot",
            "pages": state.pages,
            "rows": state.rows,
            "bytes": state.bytes,
        }
        for state in states
    ]


def describe_offsets(offsets: Iterable[CommittedOffset]) -> dict[str, Any]:
    """Return the response to `get-offsets`, in the order given."""
    return {
        "offsets": [
            {
                "topic": str(entry.topic),
                "partition": partition_value(entry.partition),
                "offset": entry.offset,
                "committed_at": format_timestamp(entry.committed_at),
            }
            for entry in offsets
        ]
    }


GrantText = Annotated[str, AfterValidator(accepted_by(Grant.parse))]
"""Text of a grant, `RIGHT=PATTERN`."""


class QuotasBody(Message):
    """Quotas of a token; an absent key means no bound."""

    calls: Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None = None
    """Most concurrent calls at a node."""
    bytes: Annotated[int, Field(ge=1, le=QUOTA_MAX)] | None = None
    """Most bytes in flight at a node."""
    topics: Annotated[int, Field(ge=0, le=QUOTA_MAX)] | None = None
    """Most topics that the token may administer."""
    partitions: Annotated[int, Field(ge=0, le=QUOTA_MAX)] | None = None
    """Most partitions of keyed topics that the token may write to."""

    @property
    def quotas(self) -> Quotas:
        """The quotas."""
        return Quotas(self.calls, self.bytes, self.topics, self.partitions)


class TokenCreate(ActionBody):
    """The body of `token-create`."""

    name: Identifier
    grants: Annotated[
        tuple[GrantText, ...], Field(strict=False, min_length=1, max_length=GRANTS_MAX)
    ]
    """Rights on names, like `read=orders`."""
    expires: Annotated[str, Field(max_length=64)] | None = None
    """Expiry: a duration like `90d`, or a time in RFC 3339; None for never."""
    quotas: QuotasBody = QuotasBody.model_construct()


class TokenAlter(ActionBody):
    """The body of `token-alter`."""

    name: Identifier
    quotas: QuotasBody
    """New quotas of the token, replacing all earlier ones."""


class TokenList(ActionBody):
    """The body of `token-list`: an empty object."""


class TokenRevoke(ActionBody):
    """The body of `token-revoke`."""

    name: Identifier


def describe_token(token: Token) -> dict[str, Any]:
    """Return a token's description, without its secret."""
    expires_at = token.expires_at
    return {
        "name": token.name,
        "grants": [str(grant) for grant in token.grants],
        "created_at": format_timestamp(token.created_at),
        "expires_at": None if expires_at is None else format_timestamp(expires_at),
        "quotas": token.quotas.to_json(),
    }
