"""The results of the client's calls: frozen dataclasses, times as aware datetimes in UTC.

Their fields are the keys of the server's descriptions, or name them by an alias; see `parsed`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import Annotated, Any, NamedTuple, Self, TypeVar, cast

from pydantic import BeforeValidator, Field, JsonValue, TypeAdapter

from wings_client._results import BatchViews, Result, schema_text, table_html
from wings_client.arrow import DataType, RecordBatch, Schema, Table
from wings_core.contracts.chunks import EndReason, PartitionEnd, PartitionRange
from wings_core.names import TopicName
from wings_core.partitions import JsonScalar
from wings_core.schemas import schema_from_ipc
from wings_core.times import moment_of, parse_timestamp

PartitionValue = JsonScalar | bytes
"""A partition value as calls take it: of the key column's kind; bytes stand for their base64."""


def _datetime(text: str) -> datetime:
    return moment_of(parse_timestamp(text))


Moment = Annotated[datetime, BeforeValidator(_datetime)]
"""A time, parsed from its text on the wire."""

ResultT = TypeVar("ResultT")


def parsed(kind: type[ResultT], found: object) -> ResultT:
    """Return a server's description as a result; unknown keys are ignored."""
    return _adapter(kind).validate_python(found)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace."""

    name: Annotated[str, Field(validation_alias="namespace")]
    """Full: `tenants/T/namespaces/N`."""
    created_at: Moment


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Its UUID distinguishes it from earlier and later topics of the same name."""

    name: str
    """Full: `tenants/T/namespaces/N/topics/X`."""
    uuid: str
    schema: Schema
    partition_key: str | None
    """The column whose value is the partition; None for a topic of one partition, None."""
    config: Mapping[str, JsonValue]
    created_at: datetime
    schema_version: int = 1
    """Version of the topic's last schema: from 1 on, one more with each change."""

    def __repr__(self) -> str:
        """Return the name, the columns and the key."""
        key = "" if self.partition_key is None else f", partition_key={self.partition_key!r}"
        return f"Topic({self.name!r}, {schema_text(self.schema)}{key})"

    def _repr_html_(self) -> str:
        """Return the columns, for a notebook."""
        key = "" if self.partition_key is None else f", partition key {self.partition_key!r}"
        return table_html(self.schema.empty_table(), f"Topic {self.name!r}{key}")

    @property
    def id(self) -> str:
        """The last part of the name."""
        return TopicName.parse(self.name).topic

    @property
    def key_type(self) -> DataType | None:
        """The type of the partition key's column; None for a topic without a key."""
        return None if self.partition_key is None else self.schema.field(self.partition_key).type

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read a server's description."""
        return cls(
            name=found["topic"],
            uuid=found["uuid"],
            schema=cast("Schema", schema_from_ipc(found["schema_ipc"])),
            partition_key=found["partition_key"],
            config=found["config"],
            created_at=_datetime(found["created_at"]),
            schema_version=found.get("schema_version", 1),  # Earlier servers have one version.
        )


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition."""

    partition: JsonScalar
    """The partition value; of a binary key, in base64."""
    log_start_offset: int
    """The first offset that is still kept."""
    next_offset: int
    """The next offset to be assigned."""
    bytes: int
    """Stored."""
    last_timestamp: Moment | None
    """Timestamp of the last message; None before the first."""


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """A named consumer's offset in a partition."""

    topic: str
    """Full."""
    partition: JsonScalar
    offset: int
    """The next one to read."""
    committed_at: Moment


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """Offsets `[start_offset, end_offset]`, both inclusive, that rows got in one partition."""

    partition: JsonScalar
    start_offset: int
    end_offset: int
    timestamp: datetime
    """Timestamp of the rows; where several batches were joined to one range, that of the last
    batch."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Read a range of a PutResult."""
        return cls(
            found["partition"],
            found["start_offset"],
            found["end_offset"],
            datetime.fromisoformat(found["timestamp"]),
        )


@dataclass(frozen=True, slots=True)
class PushResult:
    """Ranges that a push committed, all of it durable."""

    committed: tuple[CommittedRange, ...]
    """Ranges by the first row of each partition; those that follow on each other are joined."""
    rows: int
    batches: int
    """Each was atomic by itself."""


@dataclass(frozen=True, slots=True)
class Committed(PushResult):
    """Ranges that one `Producer.send` committed."""

    sequence: int
    """Sequence of its first batch."""
    next_sequence: int
    """Sequence of the next batch: that with which a restarted producer resumes."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The partition and offset of an appended row, durable."""

    partition: JsonScalar
    offset: int
    timestamp: datetime


@dataclass(frozen=True, slots=True)
class Staged:
    """The contents of a stage: durable, and invisible until published."""

    stage: str
    """Its id."""
    rows: int
    batches: int
    bytes: int
    """Bytes, as stored."""


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Offsets `[start_offset, end_offset]`, both inclusive, that a publish got in a partition."""

    topic: str
    """Full."""
    partition: JsonScalar
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Published:
    """Ranges that a publish made visible."""

    committed: tuple[PublishedRange, ...]
    """One for each topic and partition, in the order of their first rows."""
    replayed: bool
    """Whether this batch had been published before, perhaps by an earlier attempt of this call."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """The result of an abort."""

    deleted: tuple[str, ...]
    """The ids of the stages that were there."""
    published: bool | None
    """Whether the named batch had been published; None where none was named, or it is too old for
    the server to know."""


class _Chunk(NamedTuple):
    batch: RecordBatch
    start_offset: int
    end_offset: int
    """Inclusive. With a filter, the range includes the rows that it dropped."""


class Chunk(BatchViews, _Chunk):
    """Rows of one partition, and the range of the log that they come from."""

    __slots__ = ()

    @property
    def _where(self) -> str:
        return f"{self.batch.num_rows:,} rows, {_offsets(self.start_offset, self.end_offset)}"


class _ConsumedBatch(NamedTuple):
    batch: RecordBatch
    partition: JsonScalar
    start_offset: int
    end_offset: int
    """Inclusive. With a filter, the range includes the rows that it dropped."""


class ConsumedBatch(BatchViews, _ConsumedBatch):
    """Rows of one partition that a consumer delivers."""

    __slots__ = ()

    @property
    def _where(self) -> str:
        offsets = _offsets(self.start_offset, self.end_offset)
        return f"{self.batch.num_rows:,} rows, partition {self.partition!r}, {offsets}"

    @property
    def ranges(self) -> Sequence[PartitionRange]:
        """The one range, as of a batch of many partitions."""
        rows = self.batch.num_rows
        return (PartitionRange(self.partition, self.start_offset, self.end_offset, rows),)

    def parts(self) -> Iterator["ConsumedBatch"]:
        """Yield the batch itself, as a batch of many partitions yields its parts."""
        yield self


class _RangesBatch(NamedTuple):
    batch: RecordBatch
    ranges: Sequence[PartitionRange]
    """In the order of the rows: each says how many of them are its."""


class RangesBatch(BatchViews, _RangesBatch):
    """Rows of many partitions, and the ranges of their logs that they come from."""

    __slots__ = ()

    @property
    def _where(self) -> str:
        return f"{self.batch.num_rows:,} rows, {_ranges(self.ranges)}"

    def parts(self) -> Iterator[ConsumedBatch]:
        """Yield the rows of each range by themselves, without a copy; ranges without rows too."""
        first = 0
        for partition, start_offset, end_offset, rows in self.ranges:
            batch = self.batch.slice(first, rows)
            yield ConsumedBatch(batch, partition, start_offset, end_offset)
            first += rows


class _TopicBatch(NamedTuple):
    batch: RecordBatch
    ranges: Sequence[PartitionRange]
    """In the order of the rows: each says how many of them are its."""
    topic: Topic


class TopicBatch(BatchViews, _TopicBatch):
    """Rows of one of several topics that a member of a group reads."""

    __slots__ = ()

    @property
    def _where(self) -> str:
        return f"{self.topic.id!r}, {self.batch.num_rows:,} rows, {_ranges(self.ranges)}"

    def parts(self) -> Iterator[ConsumedBatch]:
        """Yield the rows of each range by themselves, without a copy; ranges without rows too."""
        return RangesBatch(self.batch, self.ranges).parts()


Consumed = ConsumedBatch | RangesBatch | TopicBatch
"""Batch that a consumer delivers: of one partition where it reads one, else of many; of one of its
topics where it reads several."""


@dataclass(frozen=True, repr=False)
class FetchResult(Result):
    """The result of a fetch; also an Arrow stream (for DuckDB, polars, pandas).

    Of one partition it has its offsets; of many, `ranges` and `next_offsets` tell those of each.
    """

    schema: Schema
    batches: Sequence[RecordBatch]
    ranges: Sequence[Sequence[PartitionRange]]
    """Ranges of each batch, in the order of its rows."""
    partitions: Sequence[PartitionEnd]
    """Where the fetch ended in each partition that was read or named."""
    end: EndReason
    """Why it ended: `max_messages`, `min_messages` or `deadline`."""
    asked: int | None = None
    """Offset asked for of one partition, where it was a number."""

    @property
    def next_offsets(self) -> dict[JsonScalar, int]:
        """The offset to fetch from next, by partition value: the `offset` of the next fetch."""
        return {each.partition: each.next_offset for each in self.partitions}

    @property
    def log_end_offsets(self) -> dict[JsonScalar, int]:
        """The next offset to be assigned, by partition value, as of the end of the fetch."""
        return {each.partition: each.log_end_offset for each in self.partitions}

    @property
    def start_offset(self) -> int:
        """Offset of the first row; where there is none, the offset asked for.

        Of `"earliest"`, `"latest"` and times, that is `next_offset`.

        Raises:
            ValueError: Of many partitions, as for the three that follow.
        """
        end = self._one()
        if self.ranges:
            return self.ranges[0][0].start_offset
        return end.next_offset if self.asked is None else self.asked

    @property
    def end_offset(self) -> int | None:
        """Offset of the last row, inclusive; None where there is none."""
        self._one()
        return self.ranges[-1][0].end_offset if self.ranges else None

    @property
    def next_offset(self) -> int:
        """The offset to fetch from next."""
        return self._one().next_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned, as of the end of the fetch."""
        return self._one().log_end_offset

    def _one(self) -> PartitionEnd:
        if len(self.partitions) != 1:
            raise ValueError(
                f"the fetch read {len(self.partitions)} partitions: see ranges, next_offsets and "
                "log_end_offsets"
            )
        return self.partitions[0]

    @cached_property
    def table(self) -> Table:
        """All rows as one table, without a copy."""
        return Table.from_batches(self.batches, self.schema)

    @property
    def num_rows(self) -> int:
        """How many rows came."""
        return sum(batch.num_rows for batch in self.batches)

    def __len__(self) -> int:
        """Return how many rows came."""
        return self.num_rows

    def __iter__(self) -> Iterator[RecordBatch]:
        """Return the batches."""
        return iter(self.batches)

    def to_arrow(self) -> Table:
        """Return `table`."""
        return self.table

    @property
    def _where(self) -> str:
        found = _ranges([each for ranges in self.ranges for each in ranges])
        nexts = ", ".join(f"{each.next_offset}" for each in self.partitions[:RANGES_SHOWN])
        more = ", …" if len(self.partitions) > RANGES_SHOWN else ""
        return f"{self.num_rows:,} rows, {found}, next offset {nexts}{more}"


RANGES_SHOWN = 5
"""Partitions that the text of a result names."""


def _offsets(start_offset: int, end_offset: int) -> str:
    return f"offsets {start_offset} to {end_offset}"


def _ranges(ranges: Sequence[PartitionRange]) -> str:
    """Return the offsets of each partition as text; the ranges of one are joined."""
    ends: dict[JsonScalar, tuple[int, int]] = {}
    for each in ranges:
        start_offset = ends.get(each.partition, (each.start_offset, 0))[0]
        ends[each.partition] = (start_offset, each.end_offset)
    texts = [f"partition {value!r} {_offsets(*found)}" for value, found in ends.items()]
    more = [f"{len(texts) - RANGES_SHOWN} partitions more"] if len(texts) > RANGES_SHOWN else []
    return ", ".join(texts[:RANGES_SHOWN] + more) or "no offsets"
