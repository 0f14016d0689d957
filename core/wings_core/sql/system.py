"""System tables: metadata as tables, with columns named as the fields of the actions' responses.

A table shows what its reader may see: the topics on which it has the right that the corresponding
action needs; nodes only to an operator.

`system.dead_letters` lists all dead letters, the message as JSON. `system."dead_letters/TOPIC"`
lists the letters of one source topic: the letter's own columns, then those of the message in the
source's current schema.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_compute import pc
from wings_core.arrow_types import fields_of
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import (
    InvalidArgument,
    InvalidName,
    InvalidSql,
    NotFound,
    WingsError,
    suggested,
)
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import OFFSET_FIELD, Selection
from wings_core.json_rows import encode_lines
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.security.principal import Principal
from wings_core.security.rights import DATA_RIGHTS, Right
from wings_core.share.dead_letters.writer import (
    DEAD_LETTER_SCHEMA,
    is_of_dead_letters,
    read_payload,
)
from wings_core.sql.predicate import Predicate
from wings_core.sql.topic_table import ScanCount, shown

if TYPE_CHECKING:
    from wings_core.log import Log


CONSUMERS_AT_ONCE = 1_000
"""Consumer names per request to metadata."""

_TEXT, _NUMBER, _TIME = pa.string(), pa.int64(), pa.timestamp("us", "UTC")

Columns = Sequence[Sequence[Any]]

_PAYLOAD, _SOURCE = "payload", "source_topic"

_OWN = [
    pa.field("topic", pa.string()),
    pa.field("offset", pa.int64()),
    *(field for field in fields_of(DEAD_LETTER_SCHEMA) if field.name != _PAYLOAD),
]
"""Columns of the letter itself: its position, and the facts about its message."""

_LETTERS_SCHEMA = pa.schema([*_OWN, pa.field(_PAYLOAD, pa.string())])
"""Schema of `system.dead_letters`."""


@dataclass(frozen=True, slots=True)
class _Table:
    schema: pa.Schema
    columns: "Callable[[Log, Principal], Columns]"


@dataclass(frozen=True, slots=True)
class SystemReader:
    """Current rows of system tables, for one query.

    Args:
        log: The log that the tables describe.
        principal: The reader.
        cancel: Ends scans of dead letters.
        count: Counts rows and bytes of those scans.
    """

    log: "Log"
    principal: Principal
    cancel: Cancel
    count: ScanCount

    def table(self, name: str) -> bytes:
        """Return the rows of a table of metadata, as an IPC stream.

        Raises:
            InvalidSql: There is no such table.
        """
        table = SYSTEM_TABLES.get(name)
        if table is None:
            hint = suggested(name, SYSTEM_TABLES)
            raise InvalidSql(f"there is no system table {name!r:.80}{hint}")
        rows = _rows(table, self.log, self.principal)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue().to_pybytes()

    def dead_letters(self, source: Topic | None) -> "_LettersTable":
        """Return the dead letters of a topic, or of all."""
        topics = self.principal.topics(self.log.admin, Right.READ)
        holding = [topic for topic in topics if is_of_dead_letters(topic)]
        return _LettersTable(self.log, holding, source, self.cancel, self.count)


def _rows(table: _Table, log: "Log", principal: Principal) -> pa.Table:
    fields = [table.schema.field(index) for index in range(len(table.schema))]
    columns = table.columns(log, principal) or [() for _ in fields]
    arrays = [_array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _array(values: Sequence[Any], data_type: pa.DataType) -> Any:
    if data_type == _TIME:
        return pa.array(values, pa.int64()).cast(data_type)
    return pa.array(values, data_type)


def _turned(rows: Sequence[Sequence[Any]]) -> Columns:
    return list(zip(*rows, strict=True))


def _topics(log: "Log", principal: Principal) -> Columns:
    return _turned(
        [
            (
                str(topic.name),
                topic.uuid,
                topic.schema_version,
                topic.partition_key,
                json.dumps(topic.config.model_dump(mode="json")),
                topic.created_at,
            )
            for topic in principal.topics(log.admin, *DATA_RIGHTS)
        ]
    )


def _partitions(log: "Log", principal: Principal) -> Columns:
    return _of_topics(
        log, principal, log.registry.partition_states, len(SYSTEM_TABLES["partitions"].schema) - 1
    )


def _segments(log: "Log", principal: Principal) -> Columns:
    found = _of_topics(
        log, principal, log.maintenance.tier_states, len(SYSTEM_TABLES["segments"].schema) - 1
    )
    found[2] = ["remote" if is_remote else "hot" for is_remote in found[2]]
    return found


def _of_topics(
    log: "Log",
    principal: Principal,
    states_of: Callable[[str], Sequence[tuple[Any, ...]]],
    fields: int,
) -> list[list[Any]]:
    """Return topic names and the first `fields` fields of each of their states, as columns.

    Built by column, as rows are many: transposing them with `zip` takes four times as long.
    """
    columns: list[list[Any]] = [[] for _ in range(fields + 1)]
    for topic in principal.topics(log.admin, Right.READ):
        with suppress(NotFound):
            states = states_of(topic.uuid)
            columns[0] += repeat(str(topic.name), len(states))
            for index in range(fields):
                columns[index + 1] += map(itemgetter(index), states)
    return columns


def _consumers(log: "Log", principal: Principal) -> Columns:
    rows: list[tuple[Any, ...]] = []
    after: str | None = None
    while names := log.registry.list_consumers(CONSUMERS_AT_ONCE, after=after):
        after = names[-1]
        for name in names:
            rows += [
                (name, str(entry.topic), entry.partition, entry.offset, entry.committed_at)
                for entry in log.registry.get_offsets(name)
                if principal.may(Right.READ, str(entry.topic))
            ]
    return _turned(rows)


def _groups(log: "Log", principal: Principal) -> Columns:
    rows: list[tuple[Any, ...]] = []
    for namespace in log.admin.list_namespaces():
        if principal.may_see_namespace(namespace.name):
            with suppress(NotFound):
                rows += [
                    (
                        str(group.topic.name),
                        group.name,
                        json.dumps(group.config.model_dump(mode="json")),
                    )
                    for group in log.shares.of_namespace(namespace.name)
                    if principal.may(Right.SHARE, str(group.topic.name))
                ]
    return _turned(rows)


def _files(log: "Log", principal: Principal) -> Columns:
    known = log.metadata.tables.tables()
    rows: list[tuple[Any, ...]] = []
    for topic in principal.topics(log.admin, Right.READ):
        if topic.uuid in known:
            rows += [
                (
                    str(topic.name),
                    file.partition,
                    known[topic.uuid],
                    file.folio,
                    file.end_offset,
                    file.rows,
                    file.added,
                    file.removed,
                )
                for file in log.metadata.tables.segments(topic.uuid)
            ]
    return _turned(rows)


def _no_letters(log: "Log", principal: Principal) -> Columns:
    del log, principal  # Dead letters are scanned as topics are: see `SystemReader`.
    return []


def _nodes(log: "Log", principal: Principal) -> Columns:
    if not principal.is_operator:
        return []
    return _turned(
        [(node.flight, node.http, node.kafka or None, node.since) for node in log.live_nodes()]
    )


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(cast("Any", list(columns.items())))


SYSTEM_TABLES: Mapping[str, _Table] = {
    "topics": _Table(
        _schema(
            topic=_TEXT,
            uuid=_TEXT,
            schema_version=_NUMBER,
            partition_key=_TEXT,
            config=_TEXT,
            created_at=_TIME,
        ),
        _topics,
    ),
    "partitions": _Table(
        _schema(
            topic=_TEXT,
            partition=_TEXT,
            log_start_offset=_NUMBER,
            next_offset=_NUMBER,
            bytes=_NUMBER,
            last_timestamp=_TIME,
        ),
        _partitions,
    ),
    "segments": _Table(
        _schema(
            topic=_TEXT, partition=_TEXT, tier=_TEXT, pages=_NUMBER, rows=_NUMBER, bytes=_NUMBER
        ),
        _segments,
    ),
    "consumers": _Table(
        _schema(consumer=_TEXT, topic=_TEXT, partition=_TEXT, offset=_NUMBER, committed_at=_TIME),
        _consumers,
    ),
    "groups": _Table(_schema(topic=_TEXT, group=_TEXT, config=_TEXT), _groups),
    "dead_letters": _Table(_LETTERS_SCHEMA, _no_letters),
    "files": _Table(
        _schema(
            topic=_TEXT,
            partition=_TEXT,
            identifier=_TEXT,
            file=_TEXT,
            end_offset=_NUMBER,
            rows=_NUMBER,
            added=_NUMBER,
            removed=_NUMBER,
        ),
        _files,
    ),
    "nodes": _Table(_schema(flight=_TEXT, http=_TEXT, kafka=_TEXT, since=_TIME), _nodes),
}
"""The system tables by name; the column `partition` has the key value as JSON text."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A column of the source's messages."""

    name: str
    """Name in the source topic."""
    field: "pa.Field[Any]"
    """The corresponding column of the table."""


class _LettersTable:
    """The table of dead letters.

    Args:
        log: The log that stores them.
        topics: Topics that hold letters and that the reader may read.
        source: The topic whose letters are listed; None lists all, with the message as JSON.
        cancel: Ends the scans.
        count: Counts rows and bytes read, and keeps the first error of a scan.
    """

    def __init__(
        self,
        log: "Log",
        topics: Sequence[Topic],
        source: Topic | None,
        cancel: Cancel,
        count: ScanCount,
    ) -> None:
        self._log = log
        self._source = source
        self._cancel = cancel
        self._count = count
        # Fixed once: letters that arrive later are not seen.
        self._ends = [
            (topic, log.registry.partition_state(topic.uuid, UNPARTITIONED)) for topic in topics
        ]
        self._held = [] if source is None else _held(source)
        self.schema = (
            _LETTERS_SCHEMA
            if source is None
            else pa.schema([*_OWN, *(each.field for each in self._held)])
        )
        self._sources: dict[str, Topic | None] = {}

    def batches(self, schema: pa.Schema, predicate: Predicate | None) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema` of the rows that satisfy `predicate`."""
        needed = set(schema.names) | (predicate.columns if predicate else set[str]())
        try:
            for topic, state in self._ends:
                selection = Selection.of(topic, ReadOptions(system_columns=True))
                start, stop = state.log_start_offset, state.next_offset
                cursor = PartitionCursor(UNPARTITIONED, start, stop, clamps=True)
                read = Read.of(topic, [cursor], selection)
                for chunk in self._log.fetcher.scan(read, self._cancel):
                    self._count.rows += chunk.batch.num_rows
                    self._count.bytes += chunk.bytes
                    rows = self._shown(topic, chunk.batch, needed)
                    passed = rows if predicate is None else predicate.filter(rows)
                    yield passed.select(schema.names)
        except WingsError as error:
            self._count.error = self._count.error or error
            raise

    def _shown(self, topic: Topic, letters: pa.RecordBatch, needed: set[str]) -> pa.RecordBatch:
        """Return letters as rows of the table, with the needed columns."""
        if self._source is not None:
            name = pa.scalar(str(self._source.name), pa.string())
            of_source = pc.call_function("equal", [letters.column(_SOURCE), name])
            letters = letters.filter(of_source)
        arrays: dict[str, Any] = {}
        for field in self.schema:
            if field.name not in needed or field.name in arrays:
                continue
            if field.name == "topic":
                arrays["topic"] = cast("Any", pa).repeat(str(topic.name), letters.num_rows)
            elif field.name == "offset":
                arrays["offset"] = letters.column(OFFSET_FIELD.name)
            elif field.name in DEAD_LETTER_SCHEMA.names and field.name != _PAYLOAD:
                arrays[field.name] = letters.column(field.name)
            else:
                arrays |= self._messages(letters)
        fields = [self.schema.field(name) for name in arrays]
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))

    def _messages(self, letters: pa.RecordBatch) -> dict[str, Any]:
        """Return the message columns of letters, by name."""
        found = [self._message(letters, row) for row in range(letters.num_rows)]
        if self._source is None:
            texts = [None if each is None else _json(each) for each in found]
            return {_PAYLOAD: pa.array(texts, pa.string())}
        columns: dict[str, Any] = {}
        for held in self._held:
            values = [_value(each, held) for each in found]
            columns[held.field.name] = pa.concat_arrays([pa.array([], held.field.type), *values])
        return columns

    def _message(self, letters: pa.RecordBatch, row: int) -> pa.RecordBatch | None:
        """Return the message of a letter; None if it has none, or an unreadable one."""
        payload = cast("Any", letters.column(_PAYLOAD)[row]).as_buffer()
        source = self._source_of(letters.column(_SOURCE)[row].as_py())
        if payload is None or source is None:
            return None
        try:
            return read_payload(payload, source.schemas, unmarked=True)[0]
        except InvalidArgument:
            return None

    def _source_of(self, name: str) -> Topic | None:
        if self._source is not None:
            return self._source
        if name not in self._sources:
            try:
                self._sources[name] = self._log.admin.get_topic(TopicName.parse(name))
            except (InvalidName, NotFound):
                self._sources[name] = None  # Deleted.
        return self._sources[name]


def _held(source: Topic) -> list[_Held]:
    """Return the columns of a source's messages; names that a letter has too get a prefix."""
    taken = {field.name for field in _OWN}
    held: list[_Held] = []
    for column in shown(source).columns.values():
        if column.name[:2] != "__":
            name = column.name
            while name.lower() in taken:
                name = f"{_PAYLOAD}_{name}"
            taken.add(name.lower())
            held.append(_Held(column.name, pa.field(name, column.field.type)))
    return held


def _value(message: pa.RecordBatch | None, held: _Held) -> Any:
    """Return the value of one column of a message, as an array of length one."""
    if message is not None and held.name in message.schema.names:
        value = message.column(held.name)
        try:
            return value if value.type == held.field.type else value.cast(held.field.type)
        except pa.ArrowInvalid:
            pass  # Written with an earlier schema; the value does not fit the present type.
    return cast("Any", pa).nulls(1, held.field.type)


def _json(message: pa.RecordBatch) -> str:
    return b"".join(encode_lines(message)).decode().strip()
