"""The nouns of the log: topics, pages, locations, and what a commit says of them.

Offsets are per partition, start at 0 and have no gaps. In results `end_offset` is inclusive;
`next_offset` and `log_end_offset` are exclusive ends.
"""

from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple, NoReturn

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from wings_core.errors import Internal, WingsError
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition


class TopicConfig(BaseModel):
    """What a topic's owner may set, at creation and later."""

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
        "Null: they are not.",
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


INLINE_SUFFIX = ".inline"
"""Of the names of folios that metadata keeps itself."""

LOST_FOLIO = "lost"
"""The file that pages lie in, as metadata says after a repair, of which nothing is left."""


StoreRole = Literal["hot", "remote"]
"""What an object store of a log is for."""

STORE_MESSAGES: dict[StoreRole, str] = {"hot": "new", "remote": "old"}
"""Which messages it has."""


class PageAddress(NamedTuple):
    """Where a page lies: bytes `[position, position + length)` of a folio or segment file."""

    folio: str
    position: int
    length: int

    @property
    def pushed_format(self) -> "PageFormat":
        """The format of a page that was pushed to this place."""
        return PageFormat.INLINE if self.folio.endswith(INLINE_SUFFIX) else PageFormat.PLAIN


@dataclass(frozen=True, slots=True)
class InlineFolio:
    """The pages of a small flush, kept by metadata in the transaction that assigns offsets."""

    name: str
    """Ends in `INLINE_SUFFIX`."""
    data: bytes
    """All of its pages, one after another."""


class PageFormat(IntEnum):
    """How a page's bytes hold its rows; metadata stores the number, which never changes."""

    PLAIN = 1
    """As pushed: one Arrow IPC message, uncompressed; all rows have the page's timestamp."""
    SEGMENT = 2
    """Merged from other pages: one compressed Arrow IPC message in a segment file, with a timestamp
    for each row in a last column of its own."""
    INLINE = 3
    """As PLAIN, in a folio that metadata keeps until it is drained."""
    DRAINED = 4
    """Gathered from pages that were inline: as PLAIN, with a timestamp for each row in a last
    column of its own."""
    PARQUET = 5
    """As SEGMENT, but a row group of a Parquet file."""

    @property
    def is_merged(self) -> bool:
        """Whether maintenance wrote such pages, into the remote store, out of others."""
        return self in {PageFormat.SEGMENT, PageFormat.PARQUET}

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise Internal(f"a page has format {value}, which only a later version of Wings reads")


_FORMATS = {int(each): each for each in PageFormat}


def page_format(number: int) -> PageFormat:
    """Return the format of a number out of metadata; quicker than the enumeration's own look-up.

    Raises:
        Internal: Only a later version knows it.
    """
    return _FORMATS.get(number) or PageFormat(number)


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class StoredPage:
    """Rows of one partition that are durable and wait for their offsets."""

    partition: Partition
    rows: int
    address: PageAddress
    first_row: int | None = None
    """Where they begin in the page (0-based), if they are a slice of it; None: all of it."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None: all of it."""
    schema_version: int = 1
    """Of the topic's schema, in which the page is written."""

    @property
    def bytes(self) -> int:
        """Stored bytes of the rows."""
        return self.address.length if self.slice_bytes is None else self.slice_bytes

    def joined(self, page: "StoredPage") -> "StoredPage | None":
        """Return these rows and those of the slice that follows, None where `page` is not that."""
        if self.first_row is None or page.first_row != self.first_row + self.rows:
            return None
        if page.address != self.address or page.partition != self.partition:
            return None
        size = self.bytes + page.bytes
        return StoredPage(
            self.partition,
            self.rows + page.rows,
            self.address,
            self.first_row,
            size,
            self.schema_version,
        )


class Location(NamedTuple):
    """The offsets `[start_offset, end_offset]`, and where their rows lie: a page or a slice."""

    start_offset: int
    end_offset: int
    timestamp: int
    """Of the last row of the page, in microseconds since the epoch; never before the others'."""
    address: PageAddress
    first_timestamp: int | None = None
    """Of the first row; None: every row has `timestamp`."""
    format: PageFormat = PageFormat.PLAIN
    first_row: int | None = None
    """Where the rows begin in the page (0-based), if they are a slice of it; None: all of it."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None: all of it."""
    schema_version: int = 1
    """Of the topic's schema, in which the page is written."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end_offset - self.start_offset + 1

    @property
    def bytes(self) -> int:
        """Stored bytes of the rows."""
        return self.address.length if self.slice_bytes is None else self.slice_bytes

    @property
    def earliest_timestamp(self) -> int:
        """The timestamp of its first row, in microseconds since the epoch."""
        return self.timestamp if self.first_timestamp is None else self.first_timestamp


@dataclass(frozen=True, slots=True)
class InlinePage:
    """A page that is to be drained, and whose it is."""

    topic: TopicName
    topic_uuid: str
    partition: Partition
    location: Location


@dataclass(frozen=True, slots=True)
class InlineBacklog:
    """What metadata keeps inline."""

    pages: tuple[InlinePage, ...]
    """The first of those that are visible, by partition and offset."""
    bytes: int
    """Of all inline folios, in stages too."""


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Sums over partitions."""

    partitions: int = 0
    """How many were written to."""
    messages: int = 0
    """Of their next offsets."""
    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicSums:
    """A topic, and the sums over its partitions."""

    topic: TopicName
    topic_uuid: str
    sums: PartitionSums


@dataclass(frozen=True, slots=True)
class LargestTopics:
    """What `Maintenance.largest_topics` found at one moment."""

    topics: tuple[TopicSums, ...]
    """Those with most stored bytes, by them, the largest first."""
    others: int
    """How many topics there are besides."""
    of_others: PartitionSums
    grouped: tuple[TopicName, ...]
    """Topics that have share groups, those with most bytes."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Pages of a partition, and those of the same offsets that take their place."""

    topic_uuid: str
    partition: Partition
    old: tuple[Location, ...]
    new: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """What `OffsetRegistry.locate` found at one moment."""

    locations: tuple[Location, ...]
    """In order of offset, without gaps; the first holds the offset asked for. Empty at the end."""
    log_start_offset: int
    log_end_offset: int
    asked_at: float | None = field(default=None, compare=False)
    """When the look began, by the monotonic clock, if that may be before the caller asked: it then
    may have missed what was committed since. None: it began after. Minus infinity: metadata could
    not be asked, and this is what was last heard."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a partition that a reader waits at."""

    topic_uuid: str
    partition: Partition
    offset: int


class PartitionState(NamedTuple):
    """Where a partition stands."""

    partition: Partition
    log_start_offset: int
    next_offset: int
    bytes: int
    """Stored bytes of all its pages."""
    last_timestamp: int | None
    """Microseconds since the epoch; None before the first message."""


class LocatedPartition(NamedTuple):
    """What `OffsetRegistry.locate_many` found of one partition."""

    state: PartitionState
    locations: tuple[Location, ...]
    """As of `Located`: of an offset below the log's start, from the first message that is kept."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """A producer's number for a batch, which makes it idempotent within a topic."""

    producer_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class ExpectedOffset:
    """Compare-and-append: commit only if this is the partition's next offset."""

    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class StageEntry:
    """Says that a batch is to be staged: durable, and invisible until its stage is published."""

    stage: str
    """The stage's id."""
    writing: str
    """Unique for the stream that writes the stage; no other stream adds to it."""
    first: bool
    """Whether it is the stream's first batch, which begins the stage."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class CommitBatch:
    """One pushed batch, its pages durable, as the registry is asked to commit it.

    Conditions are checked in this order: sequence, then expected offset.
    """

    stream: int
    """Batches of one stream share it; a refused batch refuses the later ones of its stream."""
    topic_uuid: str
    pages: tuple[StoredPage, ...]
    """By first row of each partition; none for an empty batch."""
    sequence: Sequence | None = None
    expected: ExpectedOffset | None = None
    timestamp: int | None = None
    """Given by the producer, in microseconds since the epoch; None: the time of commit."""
    stage: StageEntry | None = None
    """None: visible at once. A batch with a stage has neither sequence nor expected offset."""


@dataclass(frozen=True, slots=True)
class FlushId:
    """Names a flush, so that a commit whose answer was lost can be asked for again."""

    writer: str
    """Unique for the process that flushes, from its start to its end."""
    number: int
    """Counts up; the writer's next flush begins only when it will not ask for this one again."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class CommittedRange:
    """Offsets `[start_offset, end_offset]` that a batch got in one partition."""

    partition: Partition
    start_offset: int
    end_offset: int
    timestamp: int
    """The timestamp that its rows bear, in microseconds since the epoch."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Accepted:
    """The batch is committed; of a repeat, the ranges of its first commit."""

    committed: tuple[CommittedRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """The batch is durable in a stage, and invisible."""

    stage: str
    rows: int
    bytes: int
    """Of its pages."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The batch is not committed and never will be."""

    error: WingsError


CommitResult = Accepted | Staged | Rejected


@dataclass(frozen=True, slots=True)
class Stage:
    """What was staged under one id and is not published yet."""

    stage: str
    topic_uuid: str
    rows: int
    bytes: int
    pages: int
    changed_at: int
    """When its last batch came, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Offsets `[start_offset, end_offset]` that a publish got in one partition of a topic."""

    topic: TopicName
    partition: Partition
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Published:
    """What a publish made visible; of a repeat, what the first one did."""

    committed: tuple[PublishedRange, ...]
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """What an abort deleted."""

    stages: tuple[str, ...]
    """Those that were there, in the order asked."""
    published: bool | None
    """Whether the batch that was named had been published before; None where none was named, or it
    is too old to be remembered."""


class ShardState(StrEnum):
    """What is to come of a shard."""

    OPEN = "open"
    """There may be more of it."""
    FINISHED = "finished"
    """All of it is in the log."""
    DEAD = "dead"
    """It is not retried any more; its last error says why."""


@dataclass(frozen=True, slots=True)
class Shard:
    """How far something that is read into the log once, such as a file, was read, and by whom."""

    source: str
    """Whose shard it is: shards of two sources have nothing to do with each other."""
    shard: str
    """Its id, such as a file's URI."""
    token: str
    """Of its owner, the only one who may publish it; empty: it has none."""
    position: int
    """How much of it was published; its source says in which unit."""
    state: ShardState
    failures: int
    """Tries that failed since the last progress."""
    error: str | None
    """Of the last failure."""
    opened_at: int
    """Microseconds since the epoch."""
    updated_at: int
    """When its owner was last heard of, in microseconds since the epoch; 0: never."""


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """What a publish does to a shard, in its own transaction."""

    source: str
    shard: str
    token: str
    """Has to be the owner's."""
    position: int
    """Has to be where the shard stands."""
    next_position: int
    """Where it stands then."""
    state: ShardState = ShardState.OPEN
    """What it is then."""
    error: str | None = None
    """Why a try failed; counts as one failure. None: it did not."""


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """Asks for a shard that another one owns."""

    shard: str
    token: str
    """Of the owner that is to be replaced, or one's own, to stay its owner."""


@dataclass(frozen=True, slots=True)
class ShardCounts:
    """How many shards a source has."""

    open: int
    finished: int
    dead: int
    position: int
    """The sum of all positions, told as 2^63 - 1 where it is more."""


@dataclass(frozen=True, slots=True)
class ShardsPruned:
    """What a pruning did."""

    shards: int
    """How many were forgotten."""
    debounced: bool
    """Whether nothing was looked at, as another pruning was not long ago."""


@dataclass(frozen=True, slots=True)
class Node:
    """A Flight node of several, and where its clients reach it."""

    id: str
    """Unique for the process, from its start to its end."""
    address: str
    """Of Flight: `HOST:PORT`, an IPv6 host in brackets."""
    http: str = ""
    """URL of HTTP; empty where an earlier version registered it."""
    since: int = 0
    """When it started, in microseconds since the epoch by its clock; 0 as above."""

    @property
    def flight(self) -> str:
        """URL of Flight: with TLS where HTTP has it, as both listeners of a server do."""
        return f"{'grpc+tls' if self.http.startswith('https:') else 'grpc'}://{self.address}"


@dataclass(frozen=True, slots=True)
class Expired:
    """What retention took from a partition at one moment."""

    log_start_offset: int
    """Where the log starts now."""
    pages: int
    rows: int
    bytes: int


class TierState(NamedTuple):
    """What a partition has in one tier."""

    partition: Partition
    remote: bool
    """Merged pages, in the remote store; else as they were written."""
    pages: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """A named consumer's place in a partition: `offset` is the next one to read."""

    topic: TopicName
    partition: Partition
    offset: int
    committed_at: int
    """Microseconds since the epoch."""
