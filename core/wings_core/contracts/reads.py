"""Options of reads: columns, filter, schema version, partitions, and starts.

DoGet tickets and GetFlightInfo commands have these keys; the client, gather, the command line and
Spark pass them as one `ReadOptions`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)

from wings_core.contracts.messages import (
    INT64_MAX,
    Identifier,
    Message,
    OffsetNumber,
    Timestamp,
    check_distinct,
    in_one_sentence,
    problem_of,
    sentence,
    shown,
)
from wings_core.errors import suggested
from wings_core.partitions import SLOTS_MAX
from wings_core.schemas import FIELDS_MAX
from wings_core.times import parse_timestamp


class TimestampOffset(Message):
    """The first message at or after a time, or the end of the log if there is none."""

    timestamp: Timestamp

    @property
    def timestamp_us(self) -> int:
        """The time in microseconds since the epoch, rounded up."""
        return parse_timestamp(self.timestamp, up=True)


def _offset(value: object, handler: Callable[[object], object]) -> object:
    """Validate an offset, with the error of the kind that it looks like alone."""
    if isinstance(value, dict):
        return TimestampOffset.model_validate(value)
    expected = f"an integer from 0 to {INT64_MAX}"
    if not isinstance(value, int) or isinstance(value, bool):
        expected = 'an integer, "earliest", "latest" or {"timestamp": a time}'
    return in_one_sentence(value, handler, expected)


Offset = Annotated[
    OffsetNumber | Literal["earliest", "latest"] | TimestampOffset, WrapValidator(_offset)
]
"""Start of a read: a number, an end of the log, or a time."""


def check_range(offset: object, end_offset: int | None) -> None:
    """Validate that a range of offsets does not end before it begins."""
    if end_offset is not None and isinstance(offset, int) and end_offset < offset:
        raise problem_of(f"key 'end_offset': must be at least offset ({offset}); got {end_offset}")


ENTRIES_MAX = 10_000
"""Most entries of a list of partitions."""

ALL: Literal["all"] = "all"
"""Every partition of the topic."""

Columns = Annotated[
    tuple[str, ...],
    Field(strict=False, min_length=1, max_length=FIELDS_MAX),
    AfterValidator(check_distinct),
]
"""Names of columns, in the order to return."""

SlotNumbers = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=SLOTS_MAX)], ...],
    Field(strict=False, max_length=SLOTS_MAX),
    AfterValidator(check_distinct),
]
"""Slots of a topic's partitions; see `wings_core.partitions`."""

SchemaVersion = Annotated[int, Field(ge=1, le=INT64_MAX)]
"""Version of a topic's schema, from 1."""

_OFFSET: TypeAdapter[Offset] = TypeAdapter(Offset, config=ConfigDict(defer_build=True))

_ENTRY_KEYS = frozenset({"partition", "offset", "end_offset"})


class PartitionEntry(NamedTuple):  # Not a model, since a list may have ten thousand.
    """A partition of a list, with its range."""

    partition: JsonValue
    """Partition value; the handler validates it against the topic's key."""
    offset: Offset | None = None
    """Start of the read; None for the ticket's offset."""
    end_offset: int | None = None
    """End of a scan, exclusive; None for the ticket's."""


def _parse_partitions(found: object) -> object:
    """Validate the key `partitions`: "all", or a list of entries."""
    if found == ALL:
        return ALL
    if not isinstance(found, (list, tuple)):
        raise problem_of(f'must be "all" or a list of partitions; got {shown(found)}')
    items = cast("Sequence[object]", found)
    if not items:
        raise problem_of("must not be empty")
    if len(items) > ENTRIES_MAX:
        raise problem_of(f"must have at most {ENTRIES_MAX} entries; got {len(items)}")
    entries = tuple(_entry(index, item) for index, item in enumerate(items))
    check_partitions_distinct(entry.partition for entry in entries)
    return entries


def check_partitions_distinct(partitions: Iterable[JsonValue]) -> None:
    """Validate that no partition value is named twice."""
    seen: set[object] = set()
    for partition in partitions:
        key = _identity(partition)
        if key in seen:
            raise problem_of(f"contains the partition {shown(partition)} twice")
        seen.add(key)


def _entry(index: int, item: object) -> PartitionEntry:
    if isinstance(item, PartitionEntry):
        return item
    if not isinstance(item, dict):
        return PartitionEntry(cast("JsonValue", item))
    entry = cast("dict[str, Any]", item)
    if not entry.keys() <= _ENTRY_KEYS:
        unknown = next(key for key in entry if key not in _ENTRY_KEYS)
        hint = suggested(unknown, sorted(_ENTRY_KEYS))
        raise problem_of(f"entry {index}: unknown key {unknown!r:.80}{hint}")
    if "partition" not in entry:
        raise problem_of(f"entry {index}: key 'partition' is required")
    offset, end_offset = entry.get("offset"), entry.get("end_offset")
    if "offset" in entry and not _is_number(offset):
        try:
            offset = _OFFSET.validate_python(offset, strict=True)
        except ValidationError as problem:
            raise problem_of(f"entry {index}: key 'offset': {sentence(problem)}") from None
    if "end_offset" in entry and not _is_number(end_offset):
        raise problem_of(
            f"entry {index}: key 'end_offset': must be an integer from 0 to {INT64_MAX}; "
            f"got {shown(end_offset)}"
        )
    return PartitionEntry(entry["partition"], offset, end_offset)


def _is_number(offset: object) -> bool:
    return type(offset) is int and 0 <= offset <= INT64_MAX


def _dump_partitions(partitions: Literal["all"] | tuple[PartitionEntry, ...]) -> object:
    return ALL if partitions == ALL else [_dump_entry(entry) for entry in partitions]


def _dump_entry(entry: PartitionEntry) -> object:
    value, offset, end_offset = entry
    if offset is None and end_offset is None and not isinstance(value, dict):
        return value
    found: dict[str, object] = {"partition": value}
    if offset is not None:
        found["offset"] = offset.model_dump() if isinstance(offset, TimestampOffset) else offset
    if end_offset is not None:
        found["end_offset"] = end_offset
    return found


Partitions = Annotated[
    Literal["all"] | tuple[PartitionEntry, ...],
    PlainValidator(_parse_partitions),
    PlainSerializer(_dump_partitions),
]
"""Partitions of a read: all, or a list without duplicates."""


def _parse_positions(found: object) -> object:
    """Validate the key `positions`: pairs of distinct partitions and offsets."""
    if not isinstance(found, (list, tuple)):
        raise problem_of(f"must be a list of partitions with offsets; got {shown(found)}")
    pairs = tuple(map(_pair, cast("Sequence[object]", found)))
    seen = {_identity(value) for value, _ in pairs}
    if len(seen) < len(pairs):
        raise problem_of("contains a partition twice")
    return pairs


def _pair(item: object) -> tuple[JsonValue, int]:
    if isinstance(item, (list, tuple)) and len(pair := cast("Sequence[Any]", item)) == 2:
        value, offset = pair
        if _is_number(offset):
            return value, offset
    raise problem_of(f"must contain pairs of a partition and its next offset; got {shown(item)}")


def _dump_positions(pairs: tuple[tuple[JsonValue, int], ...]) -> object:
    return list(pairs)  # pydantic takes long to inspect a built-in function such as `list`.


def _identity(value: JsonValue) -> object:
    """Return a key that also distinguishes types, since True equals 1 in Python."""
    return json.dumps(value) if isinstance(value, (list, dict)) else (type(value), value)


Positions = Annotated[
    tuple[tuple[JsonValue, int], ...],
    PlainValidator(_parse_positions),
    PlainSerializer(_dump_positions),
]
"""Starts in some of all partitions: pairs of a partition value and an offset."""


class ReadOptions(Message):
    """Options common to all reads: the columns and rows wanted, and the start."""

    columns: Columns | None = None
    """Columns to return, in order; None for all."""
    filter: str | None = None
    """SQL predicate over the topic's columns."""
    system_columns: bool = False
    """Whether to append `__offset` and `__timestamp`, after `__partition` for many partitions."""
    schema_version: SchemaVersion | None = None
    """Schema version of the columns; None for the latest."""
    offset: Offset | None = None
    """Start of the read; None for `"earliest"`."""

    @property
    def begin(self) -> Offset:
        """Start of the read, with its default."""
        return "earliest" if self.offset is None else self.offset

    @property
    def selection(self) -> dict[str, Any]:
        """The keys that select columns and rows, for another message of the same reader."""
        return {key: getattr(self, key) for key in _SELECTION if key in self.model_fields_set}


_SELECTION = ("columns", "filter", "system_columns", "schema_version")


class PartitionOptions(ReadOptions):
    """Options of a read with its topic and partitions."""

    topic: str
    """A full name or a bare id."""
    partition: JsonValue = None
    """Partition value; None for a topic without a key."""
    partitions: Partitions | None = None
    """Partitions to read in one stream; None for only `partition`."""
    slots: Annotated[SlotNumbers, Field(min_length=1)] | None = None
    """Slots whose partitions to read, of all; None for every slot."""
    consumer: Identifier | None = None
    """Consumer at whose committed offsets to begin, where it has one; with `slots`."""

    def check_partitions(
        self, end_offset: int | None = None, *, has_positions: bool = False, bounded: bool = True
    ) -> None:
        """Validate the combination of keys for partitions and starts.

        Args:
            end_offset: End of entries without one.
            has_positions: Whether the message has the key `positions`.
            bounded: Whether reads of this kind have an end.
        """
        partitions = self.partitions
        if self.slots is not None and partitions != ALL:
            raise problem_of("key 'slots' needs partitions \"all\"")
        if self.consumer is not None and self.slots is None:
            raise problem_of("key 'consumer' needs the key 'slots'")
        if has_positions and partitions != ALL:
            raise problem_of("key 'positions' needs partitions \"all\"; a list has its own offsets")
        if partitions is not None and "partition" in self.model_fields_set:
            raise problem_of("keys 'partition' and 'partitions' exclude each other")
        if partitions is None or partitions == ALL:
            check_range(self.offset, end_offset)
            return
        for entry in partitions:
            if entry.end_offset is not None and not bounded:
                raise problem_of(
                    f"key 'partitions': key 'end_offset' of partition {shown(entry.partition)} "
                    "is only for scans"
                )
            check_range(
                self.offset if entry.offset is None else entry.offset,
                end_offset if entry.end_offset is None else entry.end_offset,
            )
