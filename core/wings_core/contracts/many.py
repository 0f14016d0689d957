"""`partitions`: many partitions of a topic in one ticket or command, all or a list of entries."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import JsonValue, PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from wings_core.contracts.messages import INT64_MAX, problem_of, sentence, shown
from wings_core.contracts.offsets import Offset, TimestampOffset, check_range

ENTRIES_MAX = 10_000
"""The most entries of a list."""

ALL: Literal["all"] = "all"
"""Every partition of the topic."""

_OFFSET: TypeAdapter[Offset] = TypeAdapter(Offset)

_ENTRY_KEYS = frozenset({"partition", "offset", "end_offset"})


class PartitionEntry(NamedTuple):  # Not a model: a list may have ten thousand.
    """One partition of a list, and what of it is read."""

    partition: JsonValue
    """The value as it came; whether it is one of the topic's is checked against its key."""
    offset: Offset | None = None
    """Where to begin; None: where the ticket says."""
    end_offset: int | None = None
    """Where a scan ends, exclusive; None: where the ticket says."""


def _parse(found: object) -> object:
    """Return what `partitions` says: "all", or its entries."""
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
    seen: set[object] = set()
    for entry in entries:
        value = entry.partition
        key = _identity(value)
        if key in seen:
            raise problem_of(f"holds the partition {shown(value)} twice")
        seen.add(key)
    return entries


def _entry(index: int, item: object) -> PartitionEntry:
    if isinstance(item, PartitionEntry):
        return item
    if not isinstance(item, dict):
        return PartitionEntry(cast("JsonValue", item))
    entry = cast("dict[str, Any]", item)
    if not entry.keys() <= _ENTRY_KEYS:
        unknown = next(key for key in entry if key not in _ENTRY_KEYS)
        raise problem_of(f"entry {index}: unknown key {unknown!r:.80}")
    if "partition" not in entry:
        raise problem_of(f"entry {index}: key 'partition' is required")
    offset, end_offset = entry.get("offset"), entry.get("end_offset")
    if "offset" in entry and not (type(offset) is int and 0 <= offset <= INT64_MAX):
        offset = _offset(index, offset)
    if "end_offset" in entry and not (type(end_offset) is int and 0 <= end_offset <= INT64_MAX):
        raise problem_of(
            f"entry {index}: key 'end_offset': must be an integer from 0 to {INT64_MAX}; "
            f"got {shown(end_offset)}"
        )
    return PartitionEntry(entry["partition"], offset, end_offset)


def _offset(index: int, value: object) -> Offset:
    try:
        return _OFFSET.validate_python(value, strict=True)
    except ValidationError as problem:
        raise problem_of(f"entry {index}: key 'offset': {sentence(problem)}") from None


def _dump(partitions: Literal["all"] | tuple[PartitionEntry, ...]) -> object:
    if partitions == ALL:
        return ALL
    return [_dump_entry(entry) for entry in partitions]


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
    Literal["all"] | tuple[PartitionEntry, ...], PlainValidator(_parse), PlainSerializer(_dump)
]
"""The partitions of a read: all, or those listed, each once."""


def _parse_positions(found: object) -> object:
    """Return the pairs of `positions`, each partition once."""
    if not isinstance(found, (list, tuple)):
        raise problem_of(f"must be a list of partitions with offsets; got {shown(found)}")
    pairs = tuple(map(_pair, cast("Sequence[object]", found)))
    seen = {_identity(value) for value, _ in pairs}
    if len(seen) < len(pairs):
        raise problem_of("holds a partition twice")
    return pairs


def _pair(item: object) -> tuple[JsonValue, int]:
    if isinstance(item, (list, tuple)) and len(pair := cast("Sequence[Any]", item)) == 2:
        value, offset = pair
        if type(offset) is int and 0 <= offset <= INT64_MAX:
            return value, offset
    raise problem_of(f"must hold pairs of a partition and its next offset; got {shown(item)}")


def _identity(value: JsonValue) -> object:
    """Return what tells values apart: with its type, since Python holds True and 1 equal."""
    return json.dumps(value) if isinstance(value, (list, dict)) else (type(value), value)


Positions = Annotated[
    tuple[tuple[JsonValue, int], ...], PlainValidator(_parse_positions), PlainSerializer(list)
]
"""Where to begin in some of all partitions: pairs of a partition value and an offset."""


def check_partitions(
    keys: set[str],
    partitions: Partitions | None,
    offset: Offset | None,
    end_offset: int | None = None,
    *,
    bounded: bool = True,
) -> None:
    """Validate the keys of a ticket or command that reads one partition, or many.

    Args:
        keys: Those that it has.
        partitions: What its key of that name says.
        offset: Of entries without one.
        end_offset: Of entries without one.
        bounded: Whether reads of this kind have an end.
    """
    if "positions" in keys and partitions != ALL:
        raise problem_of("key 'positions' needs \"all\" partitions; a list has its own offsets")
    if partitions is None:
        check_range(offset, end_offset)
        return
    if "partition" in keys:
        raise problem_of("keys 'partition' and 'partitions' exclude each other")
    if partitions == ALL:
        check_range(offset, end_offset)
        return
    for entry in partitions:
        if entry.end_offset is not None and not bounded:
            raise problem_of(
                f"key 'partitions': key 'end_offset' of partition {shown(entry.partition)} belongs "
                "to scans alone"
            )
        check_range(
            offset if entry.offset is None else entry.offset,
            end_offset if entry.end_offset is None else entry.end_offset,
        )
