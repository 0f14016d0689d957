"""A topic as a table, read from the log as DuckDB scans it.

    scanner(columns, filter) ─▶ ranges of partitions ─▶ pages ─▶ columns ─▶ filter ─▶ DuckDB

DuckDB passes the columns and the filter of a scan to an Arrow dataset, whose place the table takes.
The end offsets of partitions are fixed once, when a query starts, for all of its scans.

Listing very many partitions takes long. Where the text of a statement restricts the key to given
values, only those partitions are looked up.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import Internal, InvalidArgument, WingsError
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Fetcher, Read
from wings_core.fetch.selection import (
    OFFSET_FIELD,
    PARTITION_FIELD,
    TIMESTAMP_FIELD,
    Selection,
    unreadable,
)
from wings_core.model import PartitionState, Topic
from wings_core.partitions import Partition, canonical_partition, partition_of
from wings_core.sql.parameters import Parameters, named
from wings_core.sql.predicate import ANY_ROW, Names, Predicate, ScanBounds
from wings_core.sql.statement import Statement
from wings_core.sql_process.interface import EngineFailed
from wings_core.storage.lru import Lru

if TYPE_CHECKING:
    from wings_core.log import Log

ROWS_COLUMN = "rows"
"""A generated column: DuckDB asks for the first column where it only counts rows."""

_PARTITION, _OFFSET, _TIMESTAMP = "partition", "offset", "timestamp"

_MADE_UP = frozenset((ROWS_COLUMN, _PARTITION, _OFFSET))
"""Generated columns, for which no page is read."""

TIMES_LOOKED_UP_MAX = 1024
"""Most partitions in which the offsets of a range of times are looked up."""

MADE_UP_ROWS = 1 << 20
"""Rows of a batch of generated columns only."""

SCAN_ROWS = 131_072
"""Most rows of a batch of a scan."""

COLUMNS_KEPT_MAX = 10_000
"""Most columns of topics' tables that are cached."""

LOOKS_MAX = 8
"""Most attempts to read the ends of several topics without a commit in between."""

PARTITIONS_MAX = 1_000
"""Most key values that are looked up one by one; with more, all partitions are listed."""

_INTEGER = re.compile(r"-?[0-9]{1,20}")

_Node = Mapping[str, Any]

_Range = tuple[str, int, int]
"""Rows of a partition: its value, first offset, and end offset (exclusive)."""


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column of a table; its name in the dataset is generated, hence unique."""

    name: str
    """Name in the topic."""
    scanned_as: str
    field: "pa.Field[Any]"
    """The field given to DuckDB."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The columns of a topic's table."""

    columns: Mapping[str, ShownColumn]
    """The columns by name, in order."""
    schema: pa.Schema
    """Schema of the columns that DuckDB may ask for."""
    names: Names
    """Names of the columns by which rows are located."""


def shown(topic: Topic) -> Shown:
    """Return the columns of a topic's table, without those that DuckDB cannot read."""
    version = topic.uuid, topic.schema_version
    found = _shown.get(version)
    if found is None:
        found = _shown_of(topic)
        _shown.put(version, found, len(found.columns))
    return found


_shown: Lru[tuple[str, int], Shown] = Lru(COLUMNS_KEPT_MAX)
"""Cached tables by topic UUID and schema version: each look-up asks for one."""


def _shown_of(topic: Topic) -> Shown:
    columns: dict[str, ShownColumn] = {}
    names: set[bytes] = set()
    for index, each in enumerate(fields_of(topic.schema)):
        data_type = pa.float32() if pa.types.is_float16(each.type) else each.type
        # DuckDB's names are case-insensitive.
        if unreadable(data_type) is None and each.name.encode().lower() not in names:
            names.add(each.name.encode().lower())
            scanned = f"c{index}"
            field = pa.field(scanned, data_type)
            columns[each.name] = ShownColumn(each.name, scanned, field)
    key = columns.get(topic.partition_key or "")
    for name, system in (
        (_PARTITION, PARTITION_FIELD),
        (_OFFSET, OFFSET_FIELD),
        (_TIMESTAMP, TIMESTAMP_FIELD),
    ):
        columns[system.name] = ShownColumn(system.name, name, pa.field(name, system.type))
    fields = [pa.field(ROWS_COLUMN, pa.bool_()), *(column.field for column in columns.values())]
    found = Names(_PARTITION, _OFFSET, _TIMESTAMP, None if key is None else key.scanned_as)
    return Shown(columns, pa.schema(fields), found)


@dataclass(slots=True)
class ScanCount:
    """Rows and bytes that a query has read so far, and its first error."""

    rows: int = 0
    """Rows of pages, before filters."""
    bytes: int = 0
    """Stored bytes of pages."""
    error: WingsError | None = None
    """The error that ended the first scan that failed."""

    def failed(self, error: Exception) -> None:
        """Record the error of a scan, if it is the first."""
        if self.error is None:
            known = isinstance(error, WingsError)
            self.error = error if known else Internal(f"a scan failed: {error!s:.200}")


class TopicTable:
    """The table of a topic.

    Args:
        fetcher: Reads the log, in batches that suit DuckDB.
        topic: The topic.
        states: Offsets of its partitions, fixed for this query.
        cancel: Ends the scans.
        count: Counts the rows and bytes read.
        ends: Returns whether the query should end now.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        topic: Topic,
        states: Sequence[PartitionState],
        cancel: Cancel,
        count: ScanCount,
        ends: Callable[[], bool],
    ) -> None:
        self.topic = topic
        self.shown = shown(topic)
        self.schema = self.shown.schema
        self._fetcher = fetcher
        self._states: Mapping[Partition, PartitionState] = {each.partition: each for each in states}
        self._cancel = cancel
        self._count = count
        self._ends = ends

    def batches(self, schema: pa.Schema, predicate: Predicate | None) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema` of the rows that satisfy `predicate`.

        Raises:
            StorageCorrupt: A page is damaged; also the other errors of a scan.
            EngineFailed: The query was cancelled or timed out.
        """
        try:
            names = schema.names
            if predicate is not None:
                names = [*names, *sorted(predicate.columns.difference(names))]
            bounds = ANY_ROW if predicate is None else predicate.bounds(self.shown.names)
            for rows in self._read(names, self._cursors(bounds)):
                if self._ends():
                    raise EngineFailed.stopped()
                if predicate is not None:
                    rows = predicate.filter(rows).select(schema.names)
                if rows.num_rows:
                    yield rows
        except WingsError as error:
            self._count.error = self._count.error or error
            raise

    def _read(
        self, names: Sequence[str], cursors: Sequence[PartitionCursor]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of partitions, in the columns of some names."""
        if _MADE_UP.issuperset(names):
            yield from _made_up(cursors, names)
            return
        needed = frozenset(names)
        shown = self.shown.columns.values()
        stored = [c for c in shown if c.scanned_as in needed and c.name[:2] != "__"]
        places = {column.scanned_as: place for place, column in enumerate(stored)}
        with_times = _TIMESTAMP in names
        if with_times:
            places[_TIMESTAMP] = -1
        # A read needs at least one stored column.
        columns = tuple(column.name for column in stored) or (self.topic.schema.names[0],)
        options = ReadOptions(columns=columns, system_columns=with_times)
        read = Read.of(self.topic, cursors, Selection.of(self.topic, options))
        schema = pa.schema([self.schema.field(name) for name in names])
        for chunk in self._fetcher.scan(read, self._cancel):
            self._count.rows += chunk.batch.num_rows
            self._count.bytes += chunk.bytes
            ranges = [(name, start, end + 1) for name, start, end, _ in chunk.ranges]
            yield _shaped(chunk.batch, ranges, schema, places)

    def _cursors(self, bounds: ScanBounds) -> list[PartitionCursor]:
        """Return the ranges of partitions whose rows may satisfy the predicate."""
        found: list[PartitionCursor] = []
        states = self._within(bounds)
        looks_up = bounds.has_times and len(states) <= TIMES_LOOKED_UP_MAX
        for state in states:
            start = max(state.log_start_offset, bounds.offsets[0])
            stop = min(state.next_offset, bounds.offsets[1] + 1)
            if bounds.has_times and start < stop:
                if state.last_timestamp is None or state.last_timestamp < bounds.times[0]:
                    continue
                if looks_up:
                    start, stop = self._between(state, bounds.times, start, stop)
            if start < stop:
                # Rows that retention deleted meanwhile are skipped.
                found.append(PartitionCursor(state.partition, start, stop, stop, clamps=True))
        return found

    def _within(self, bounds: ScanBounds) -> Sequence[PartitionState]:
        wanted = bounds.partitions
        if bounds.keys is not None:
            keyed = _partitions_of(self.topic, bounds.keys)
            if keyed is not None:
                wanted = keyed if wanted is None else wanted & keyed
        if wanted is None:
            return list(self._states.values())
        found = (self._states.get(Partition(partition)) for partition in sorted(wanted))
        return [state for state in found if state is not None]

    def _between(
        self, state: PartitionState, times: tuple[int, int], start: int, stop: int
    ) -> tuple[int, int]:
        """Return the offset range of a time range; timestamps never decrease within a partition."""
        offset_of = self._fetcher.offset_for_timestamp
        if times[0] > 0:
            start = max(start, offset_of(self.topic, state.partition, times[0]))
        if start < stop and state.last_timestamp is not None and times[1] < state.last_timestamp:
            stop = min(stop, offset_of(self.topic, state.partition, max(0, times[1] + 1)))
        return start, stop


def states_of(
    log: "Log", topics: Sequence[Topic], wanted: frozenset[Partition] | None
) -> Mapping[str, Sequence[PartitionState]]:
    """Return the partition states of topics by their UUIDs, all from one moment.

    Several topics are read until two reads in a row agree: both held at all moments between them.

    Args:
        log: The log with the topics.
        topics: Topics, without duplicates.
        wanted: The partitions to look up, for a single topic; None for all.
    """
    if wanted is not None:
        (topic,) = topics
        positions = [(partition, 0) for partition in sorted(wanted)]
        located = log.registry.locate_many(topic.uuid, positions, 0) if positions else []
        return {topic.uuid: [each.state for each in located]}
    found: Mapping[str, Sequence[PartitionState]] = {}
    for _ in range(LOOKS_MAX):
        before, found = (
            found,
            {topic.uuid: log.registry.partition_states(topic.uuid) for topic in topics},
        )
        if len(topics) < 2 or found == before:
            break
    return found


def looked_up(
    statement: Statement, parameters: Parameters, topic: Topic
) -> frozenset[Partition] | None:
    """Return the only partitions that can contribute rows; None where any can.

    Args:
        statement: A statement that reads this topic only.
        parameters: The values of its parameters.
        topic: The topic.
    """
    root = statement.root
    if statement.references != 1 or root["type"] != "SELECT_NODE" or root["cte_map"]["map"]:
        return None
    source = root["from_table"]
    if source["type"] != "BASE_TABLE" or source["column_name_alias"]:
        return None
    given = named(parameters)
    for condition in _conditions(root["where_clause"]):
        found = _partitions(condition, given, topic)
        if found is not None:
            return found
    return None


def _partitions_of(topic: Topic, keys: Sequence[Any]) -> frozenset[str] | None:
    """Return the partitions of key values; None where a value is not a valid key."""
    try:
        return frozenset(partition_of(key, topic.key_type) for key in keys)
    except (InvalidArgument, TypeError, ValueError):
        return None


def _shaped(
    rows: pa.RecordBatch,
    ranges: Sequence[_Range],
    schema: pa.Schema,
    places: Mapping[str, int],
) -> pa.RecordBatch:
    """Return rows in the table's types, with the generated columns.

    Args:
        rows: Rows as read.
        ranges: Offset ranges of `rows`, in order.
        schema: Schema of the result; values are cast to its types.
        places: Index in `rows` of each stored column, by name.
    """
    columns = rows.columns
    arrays = [
        columns[places[name]] if name in places else _column(name, ranges, rows.num_rows)
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _made_up(cursors: Sequence[PartitionCursor], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield generated columns of partitions; no page is read."""
    ranges: list[_Range] = []
    rows = 0
    for cursor in cursors:
        start = cursor.offset
        while start < cursor.stop:
            stop = min(cursor.stop, start + MADE_UP_ROWS - rows)
            ranges.append((cursor.partition, start, stop))
            rows += stop - start
            start = stop
            if rows == MADE_UP_ROWS:
                yield _made_up_batch(names, ranges, rows)
                ranges, rows = [], 0
    if rows:
        yield _made_up_batch(names, ranges, rows)


def _made_up_batch(names: Sequence[str], ranges: Sequence[_Range], rows: int) -> pa.RecordBatch:
    arrays = [_column(name, ranges, rows) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _column(name: str, ranges: Sequence[_Range], rows: int) -> Any:
    """Return a generated column for rows in `ranges`, whose ends are exclusive."""
    if name == ROWS_COLUMN:
        return cast("Any", pa).nulls(rows, pa.bool_())
    if name == _OFFSET:
        return pa.concat_arrays([cast("Any", pa).arange(start, stop) for _, start, stop in ranges])
    return pa.concat_arrays(
        [cast("Any", pa).repeat(partition, stop - start) for partition, start, stop in ranges]
    )


def _partitions(
    condition: _Node, given: Mapping[str, Any], topic: Topic
) -> frozenset[Partition] | None:
    """Return the partitions that `column = value` or `column IN (values)` selects."""
    if condition["type"] == "COMPARE_EQUAL":
        column, *values = condition["left"], condition["right"]
        if column["class"] != "COLUMN_REF":
            column, values = condition["right"], [column]
    elif condition["type"] == "COMPARE_IN":
        column, *values = condition["children"]
    else:
        return None
    # A name of two parts may refer to a field of a column.
    if column["class"] != "COLUMN_REF" or len(column["column_names"]) != 1:
        return None
    if len(values) > PARTITIONS_MAX:
        return None
    name = str(column["column_names"][0]).lower()
    found = [_value_of(value, given) for value in values]
    if name == PARTITION_FIELD.name:
        texts = [value for value in found if isinstance(value, str)]
        return _of_texts(texts) if len(texts) == len(found) else None
    key = topic.partition_key
    if key is None or name != key.lower() or key not in shown(topic).columns:
        return None
    key_type: Any = topic.key_type
    try:
        return frozenset(partition_of(_compared(each, key_type), key_type) for each in found)
    except InvalidArgument:
        return None


def _of_texts(texts: Sequence[str]) -> frozenset[Partition]:
    """Return the partitions that texts denote; other texts match no partition."""
    partitions: set[Partition] = set()
    for text in texts:
        with suppress(InvalidArgument):
            partitions.add(canonical_partition(text))
    return frozenset(partitions)


def _conditions(node: _Node | None) -> Iterator[_Node]:
    """Yield the conditions that every row must satisfy (the terms of an AND)."""
    if node is not None and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conditions(child)
    elif node is not None:
        yield node


def _value_of(node: _Node, given: Mapping[str, Any]) -> Any:
    """Return the value of a constant or parameter, a string or an integer; None for others."""
    if node["class"] == "PARAMETER":
        return given.get(str(node["identifier"]))
    if node["class"] != "CONSTANT":
        return None
    kind, text = node["literal"]["kind"], node["literal"].get("text")
    if kind == "STRING":
        return text
    return int(text) if kind == "INTEGER" and _INTEGER.fullmatch(text) else None


def _compared(value: Any, data_type: pa.DataType) -> int | str | None:
    """Return a value as a column of `data_type` compares it; None where that is unknown."""
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(data_type):
        if isinstance(value, str):  # SQL casts it; drivers send all values as texts.
            return int(value) if _INTEGER.fullmatch(value) else None
        return value if isinstance(value, int) else None
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return value if is_text and isinstance(value, str) else None
